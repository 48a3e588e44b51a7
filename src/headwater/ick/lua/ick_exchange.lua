--[[
  hw_ick_exchange: commit, then reserve. Without members it is a plain reserve, and with size 0 a plain
  commit. A backwash between the two moves the whole consumer set back into the producer set, so that the
  reserved members are the lowest of all.
  A call commits at most 1000 members, reserves 1000 or 4 MiB and moves 1000 back. For more, use several calls:
  commit by calls that reserve nothing; move back and fill by hw_ick_fold; read reserved members by
  hw_ick_page.
  KEYS   1 the Ick   2 its pset   3 its cset
  ARGV   1 how many to reserve   2 '1' for a backwash   3.. members to commit
  Reply  { how many of the members were in the consumer set, { member, score, ... }, 1 when calls of
           hw_ick_fold are left to do }. The second are the lowest of the consumer set, ties by member;
         none when calls are left to do
         error HW_ICK <part> <found>
  Cost   O((members + reserved) · log size)
]]
redis.register_function{
  function_name = 'hw_ick_exchange',
  callback = function(keys, args)
    local most, backwash = tonumber(args[1]), args[2]
    local ick, fault = ick_look(keys)
    if fault then return fault end
    ick_begin(keys, ick)
    local committed = ick_remove(keys[3], args, 3)
    if backwash == '1' then
      local more = ick_fold(keys[3], keys[2], math.huge, ICK_ROWS)
      if more then return { committed, {}, 1 } end
    end
    if most == 0 then return { committed, {}, 0 } end
    local more, known = ick_fold(keys[2], keys[3], most, ICK_ROWS)
    if more or most > ICK_ROWS then return { committed, {}, 1 } end
    local rows = known or redis.call('ZRANGE', keys[3], 0, most - 1, 'WITHSCORES')
    if ick_too_large(rows) then return { committed, {}, 1 } end
    return { committed, rows, 0 }
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_ick_fold: move some of the consumer set back, or fill it; one bounded step per call.
  KEYS   1 the Ick   2 its pset   3 its cset
  ARGV   1 size that the consumer set is filled to; '' moves it back
  Reply  1 when there is more to do
         error HW_ICK <part> <found>
]]
redis.register_function{
  function_name = 'hw_ick_fold',
  callback = function(keys, args)
    local most = tonumber(args[1])
    local _, fault = ick_look(keys)
    if fault then return fault end
    local more
    if most then
      more = ick_fold(keys[2], keys[3], most, ICK_ROWS)
    else
      more = ick_fold(keys[3], keys[2], math.huge, ICK_ROWS)
    end
    return more and 1 or 0
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_ick_page: get some of the reserved members, by score and then by member. Changes nothing.
  KEYS   1 the Ick   2 its pset   3 its cset
  ARGV   1 rank to begin at   2 how many, 1000 at most
  Reply  { member, score, member, score, ... }; fewer once they have 4 MiB
         error HW_ICK <part> <found>
]]
redis.register_function{
  function_name = 'hw_ick_page',
  callback = function(keys, args)
    local first, count = tonumber(args[1]), tonumber(args[2])
    local _, fault = ick_look(keys)
    if fault then return fault end
    return ick_page(keys[3], first, math.min(count, ICK_ROWS))
  end,
  flags = { 'no-writes' },
}

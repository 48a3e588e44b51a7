--[[
  hw_ick_exchange: commit, then reserve. Without members it is a plain reserve, and with 0 as the
  size a plain commit. A backwash between the two folds the whole consumer set back into the
  producer set, so that what is reserved is the lowest of all.
  KEYS   1 the Ick   2 its pset   3 its cset
  ARGV   1 how many to reserve   2 '1' for a backwash   3.. members to commit
  Reply  { how many of the members were in the consumer set, { member, score, ... } }, where the
         second are the lowest of the consumer set, ties by member
         error HW_ICK <part> <found>
  Cost   O((members + reserved) · log size); with backwash O(consumer set · log size) more
]]
redis.register_function{
  function_name = 'hw_ick_exchange',
  callback = function(keys, args)
    local most, backwash = tonumber(args[1]), args[2]
    local ick, fault = ick_look(keys)
    if fault then return fault end
    ick_begin(keys, ick)
    local committed = ick_remove(keys[3], args, 3)
    if backwash == '1' then ick_fold(keys[3], keys[2], math.huge) end
    if most == 0 then return { committed, {} } end
    local known = ick_fold(keys[2], keys[3], most)
    return { committed, known or redis.call('ZRANGE', keys[3], 0, most - 1, 'WITHSCORES') }
  end,
  flags = { 'allow-oom' },
}

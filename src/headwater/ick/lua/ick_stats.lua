--[[
  hw_ick_stats: get the sizes of the sets of an Ick, and their lowest and highest scores.
  KEYS   1 the Ick   2 its pset   3 its cset
  Reply  nothing when there is no Ick; else { name, value, ... }: pset_size, cset_size, and pset_min,
         pset_max, cset_min, cset_max, which are '' for an empty set
         error HW_ICK <part> <found>
]]
local function ick_score_at(key, rank)
  return redis.call('ZRANGE', key, rank, rank, 'WITHSCORES')[2] or ''
end

redis.register_function{
  function_name = 'hw_ick_stats',
  callback = function(keys)
    local ick, fault = ick_look(keys)
    if fault then return fault end
    if not ick.exists then return nil end
    return {
      'pset_size', ick.psize, 'cset_size', ick.csize,
      'pset_min', ick_score_at(keys[2], 0), 'pset_max', ick_score_at(keys[2], -1),
      'cset_min', ick_score_at(keys[3], 0), 'cset_max', ick_score_at(keys[3], -1),
    }
  end,
  flags = { 'no-writes' },
}

--[[
  hw_ick_scan: get a page of one of the sets, in no order. Changes nothing.
  A member that is in the set during the whole scan is returned at least once, whatever else changes.
  KEYS   1 the Ick   2 its pset   3 its cset
  ARGV   1 'pset' or 'cset'   2 cursor, '0' to begin   3 about how many
  Reply  { next cursor, '0' at the end, { member, score, member, score, ... } }
         error HW_ICK <part> <found>
]]
redis.register_function{
  function_name = 'hw_ick_scan',
  callback = function(keys, args)
    local place, cursor, count = args[1], args[2], args[3]
    local _, fault = ick_look(keys)
    if fault then return fault end
    local key = place == 'pset' and keys[2] or keys[3]
    return redis.call('ZSCAN', key, cursor, 'COUNT', count)
  end,
  flags = { 'no-writes' },
}

--[[
  hw_ick_delete: delete an Ick.
  KEYS   1 the Ick   2 its pset   3 its cset
  Reply  how many keys there were
         error HW_ICK <part> <found>
]]
redis.register_function{
  function_name = 'hw_ick_delete',
  callback = function(keys)
    local _, fault = ick_look(keys)
    if fault then return fault end
    return redis.call('UNLINK', keys[1], keys[2], keys[3])
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_ick_add: mark members as dirty; a member that is in the producer set already keeps the lower score.
  Only the producer set is checked: a member that is reserved becomes dirty again. The Ick exists
  afterwards, even if no pair was given. A repeat changes nothing.
  KEYS   1 the Ick   2 its pset   3 its cset
  ARGV   1.. score, member, score, member, ...
  Reply  { members that were not in the producer set, members whose score fell }
         error HW_ICK <part> <found>
  Cost   O(members · log size)
]]
redis.register_function('hw_ick_add', function(keys, args)
  local ick, fault = ick_look(keys)
  if fault then return fault end
  ick_begin(keys, ick)
  local changed = 0
  for i = 1, #args, 2 * ICK_ROWS do
    local last = math.min(i + 2 * ICK_ROWS - 1, #args)
    changed = changed + redis.call('ZADD', keys[2], 'LT', 'CH', unpack(args, i, last))
  end
  local new = redis.call('ZCARD', keys[2]) - ick.psize
  return { new, changed - new }
end)

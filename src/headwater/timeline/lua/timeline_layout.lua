--[[
  hw_timeline_layout: tell an instance how its farm lies. A layout with a higher epoch takes the place
  of the one before; any other is left as it is, so that a repeat, or a latecomer, changes nothing.
  KEYS   1 the layout
  ARGV   1 epoch, from 1 on   2 phase: copying, switching or settled   3 the farm as it was
         4 the farm as it will be, or is
  Reply  { epoch, phase, old, new }, as they are then
]]
redis.register_function('hw_timeline_layout', function(keys, args)
  local layout, epoch, phase, old, new = keys[1], args[1], args[2], args[3], args[4]
  local known = tonumber(redis.call('HGET', layout, 'epoch') or 0)
  if tonumber(epoch) > known then
    redis.call('HSET', layout, 'epoch', epoch, 'phase', phase, 'old', old, 'new', new)
  end
  return redis.call('HMGET', layout, 'epoch', 'phase', 'old', 'new')
end)

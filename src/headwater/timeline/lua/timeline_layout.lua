--[[
  hw_timeline_layout: store the layout of a farm on an instance. A layout with a higher epoch replaces the
  stored one; any other changes nothing, so a repeat or a late call is harmless.
  KEYS   1 the layout
  ARGV   1 epoch, from 1 on   2 phase: copying, switching or settled   3 the old farm
         4 the new farm
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

--[[
  hw_timeline_layout: tell an instance how its farm lies. A layout with a higher epoch takes the place
  of the one before; any other is left as it is, so that a repeat, or a latecomer, changes nothing.
  KEYS   1 the layout
  ARGV   1 epoch, from 1 on   2 phase: copying, switching or settled   3 the farm as it was
         4 the farm as it will be, or is
  Reply  { epoch, phase, old, new }, as they are then
]]
redis.register_function('hw_timeline_layout', function(keys, args)
  local epoch = tonumber(redis.call('HGET', keys[1], 'epoch') or 0)
  if tonumber(args[1]) > epoch then
    redis.call('HSET', keys[1], 'epoch', args[1], 'phase', args[2], 'old', args[3], 'new', args[4])
  end
  return redis.call('HMGET', keys[1], 'epoch', 'phase', 'old', 'new')
end)

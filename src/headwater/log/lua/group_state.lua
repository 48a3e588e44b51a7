--[[
  hw_group_seek: the group stands at an offset: all before it is done, all from it on is new.
  What was pending is forgotten, also what lies unseen in a box or was about to be buried.
  KEYS   1 the stream
  ARGV   1 group   2 'first', 'last' or an offset up to last + 1
  Reply  the offset; errors HW_NO_GROUP, HW_RANGE <first> <last>
]]
redis.register_function{
  function_name = 'hw_group_seek',
  callback = function(keys, args)
    local K, name, position = keys[1], args[1], args[2]
    local G, stream = group_key(K, name), load_stream(K)
    if not open_group(G) then return no_group() end
    local target = tonumber(position)
    if position == 'first' then target = stream.first end
    if position == 'last' then target = stream.last + 1 end
    if target > stream.last + 1 then
      return redis.error_reply('HW_RANGE ' .. digits(stream.first) .. ' ' .. digits(stream.last))
    end
    drop_boxes(G)
    for _, part in ipairs({ 'pending', 'due', 'expired' }) do
      redis.call('UNLINK', G .. ':' .. part)
    end
    redis.call('HDEL', G, 'burying')
    redis.call('HSET', G, 'next', target, 'pending', 0)
    serve(K, name, stream, server_ms())
    return target
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_group_info: where a group stands.
  KEYS   1 the stream
  ARGV   1 group
  Reply  { next, ack offset, pending, missed, expired, dead, max pending, dead letters on,
           created, gaps, blocked members, stream first, stream last, { member, last seen, ... } }
         error HW_NO_GROUP
]]
redis.register_function{
  function_name = 'hw_group_info',
  callback = function(keys, args)
    local K, name = keys[1], args[1]
    local G, stream = group_key(K, name), load_stream(K)
    local f = redis.call('HMGET', G, 'next', 'pending', 'missed', 'expired', 'buried', 'max_pending',
      'dead', 'created', 'gaps')
    if not f[1] then return no_group() end
    return {
      tonumber(f[1]), group_position(G), tonumber(f[2]), tonumber(f[3] or 0), tonumber(f[4] or 0),
      tonumber(f[5] or 0), tonumber(f[6]), f[7], tonumber(f[8]), f[9] or '',
      redis.call('ZCARD', G .. ':waiters'), stream.first, stream.last,
      redis.call('ZRANGE', G .. ':members', 0, -1, 'WITHSCORES'),
    }
  end,
  flags = { 'no-writes' },
}

--[[
  hw_group_remove: end a group; retention no longer waits for it.
  KEYS   1 the stream
  ARGV   1 group
  Reply  1 when it existed
]]
redis.register_function{
  function_name = 'hw_group_remove',
  callback = function(keys, args)
    local K, name = keys[1], args[1]
    return remove_group(K, name)
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_group_ack: these messages are done.
  KEYS   1 the stream
  ARGV   1 group   2.. first offset, last offset, first offset, last offset, ...
  Reply  how many pending messages that ended; what was never handed out, or is done already,
         does not count and stays as it is. error HW_NO_GROUP
  Cost   O(ranges touched · log pending ranges)
]]
redis.register_function{
  function_name = 'hw_group_ack',
  callback = function(keys, args)
    local K, name = keys[1], args[1]
    local G = group_key(K, name)
    if redis.call('EXISTS', G) == 0 then return no_group() end
    local acked = 0
    for i = 2, #args, 2 do
      local _, taken = cut_pending(G, tonumber(args[i]), tonumber(args[i + 1]), true)
      acked = acked + taken
    end
    if acked > 0 then
      redis.call('HINCRBY', G, 'pending', -acked)
      if redis.call('SISMEMBER', K .. ':waiting', name) == 1 then
        serve(K, name, load_stream(K), server_ms())
      end
    end
    return acked
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_group_postpone: pending messages come due again at another time (nack, extend).
  KEYS   1 the stream
  ARGV   1 group   2 ms from now   3.. first offset, last offset, ...
  Reply  how many pending messages were moved; error HW_NO_GROUP
]]
redis.register_function{
  function_name = 'hw_group_postpone',
  callback = function(keys, args)
    local K, name = keys[1], args[1]
    local G = group_key(K, name)
    if redis.call('EXISTS', G) == 0 then return no_group() end
    local now, moved = server_ms(), 0
    for i = 3, #args, 2 do
      local parts, taken = cut_pending(G, tonumber(args[i]), tonumber(args[i + 1]), false)
      for _, part in ipairs(parts) do
        add_pending(G, part.first, part.last, part.attempt, now + tonumber(args[2]), part.expire)
      end
      moved = moved + taken
    end
    if moved > 0 and redis.call('SISMEMBER', K .. ':waiting', name) == 1 then
      serve(K, name, load_stream(K), now)
    end
    return moved
  end,
  flags = { 'allow-oom' },
}

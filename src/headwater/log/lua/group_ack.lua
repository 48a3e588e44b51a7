--[[
  hw_group_ack: acknowledge messages: they are done.
  KEYS   1 the stream
  ARGV   1 group   2.. first offset, last offset, first offset, last offset, ...
  Reply  how many messages were pending until now; what was never handed out, or is done already,
         does not count and stays as it is
         error HW_NO_GROUP
  Cost   O(ranges touched · log pending ranges)
]]
redis.register_function{
  function_name = 'hw_group_ack',
  callback = function(keys, args)
    local K, name = keys[1], args[1]
    local G = group_key(K, name)
    if not open_group(G) then return no_group() end
    local acked = 0
    for i = 2, #args, 2 do
      local _, taken = cut_pending(G, tonumber(args[i]), tonumber(args[i + 1]), true)
      acked = acked + taken
    end
    if acked > 0 then
      redis.call('HINCRBY', G, 'pending', 0 - acked)
      local stream = load_stream(K)
      if is_waiting(stream, name) then serve(K, name, stream, server_ms()) end
    end
    return acked
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_group_skip: acknowledge offsets that compaction emptied, whether pending or not handed out yet.
  A hole stays a hole, so that anyone may do so at any time; only the stream must be the same one.
  KEYS   1 the stream
  ARGV   1 group   2 `created` as read   3.. first offset, last offset, ...
  Reply  how many offsets were pending until now
         error HW_NO_GROUP
]]
redis.register_function{
  function_name = 'hw_group_skip',
  callback = function(keys, args)
    local K, name, created = keys[1], args[1], args[2]
    local G, stream = group_key(K, name), load_stream(K)
    local next_offset = open_group(G)
    if not next_offset then return no_group() end
    if stream.created ~= created then return 0 end
    local ended = 0
    for i = 3, #args, 2 do
      local first, last = tonumber(args[i]), tonumber(args[i + 1])
      local _, taken = cut_pending(G, first, last, true)
      ended = ended + taken
      if first <= next_offset and next_offset <= last then next_offset = last + 1 end
    end
    redis.call('HSET', G, 'next', next_offset)
    if ended > 0 then
      redis.call('HINCRBY', G, 'pending', 0 - ended)
      if is_waiting(stream, name) then serve(K, name, stream, server_ms()) end
    end
    return ended
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_group_postpone: have pending messages redelivered at another time (nack, extend).
  KEYS   1 the stream
  ARGV   1 group   2 ms from now   3.. first offset, last offset, ...
  Reply  how many messages are pending and were moved
         error HW_NO_GROUP
]]
redis.register_function{
  function_name = 'hw_group_postpone',
  callback = function(keys, args)
    local K, name, delay_ms = keys[1], args[1], tonumber(args[2])
    local G = group_key(K, name)
    if not open_group(G) then return no_group() end
    local now, moved = server_ms(), 0
    for i = 3, #args, 2 do
      local parts, taken = cut_pending(G, tonumber(args[i]), tonumber(args[i + 1]), false)
      for _, part in ipairs(parts) do
        add_pending(G, part.first, part.last, part.attempt, now + delay_ms, part.expire)
      end
      moved = moved + taken
    end
    local stream = load_stream(K)
    if moved > 0 and is_waiting(stream, name) then serve(K, name, stream, now) end
    return moved
  end,
  flags = { 'allow-oom' },
}

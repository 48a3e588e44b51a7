--[[
  hw_stream_seal: put packed nodes in the place of the oldest part of the tail.
  Anyone may seal at any time: the caller says which stream and which boundary it read, and when
  either has changed since, nothing happens.
  KEYS   1 the stream
  ARGV   1 `created` as read    2 `sealed` as read
         3.. last offset, count, first time, newest time, blob, ... (nodes in order, from sealed + 1)
  Reply  the new boundary, or -1 when the race was lost
]]
redis.register_function{
  function_name = 'hw_stream_seal',
  callback = function(keys, args)
    local K, stream = keys[1], load_stream(keys[1])
    if stream.created ~= args[1] or stream.sealed ~= tonumber(args[2]) then return -1 end
    local newest, cold = 0, stream.cold >= stream.sealed
    local before = redis.call('ZRANGE', K .. ':index', -1, -1)
    if before[1] then newest = parse_node(before[1]).newest end
    for i = 3, #args, 5 do
      local last, count = tonumber(args[i]), tonumber(args[i + 1])
      local base = stream.sealed + 1
      newest = math.max(newest, tonumber(args[i + 3]))
      put_node(K, base, last, count, tonumber(args[i + 2]), newest, 1, args[i + 4])
      redis.call('HINCRBY', K, 'bytes', #args[i + 4])
      stream.sealed = last
    end
    redis.call('HSET', K, 'sealed', stream.sealed)
    if cold then redis.call('HSET', K, 'cold', stream.sealed) end
    trim_tail(K, stream)
    return stream.sealed
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_stream_replace: put one node in the place of several neighbours, with fewer messages.
  Offsets stay; what is missing becomes holes. When the new node begins later than the old ones,
  what lies before it is evicted. Nothing happens when one of the old nodes was replaced or evicted
  since it was read.
  KEYS   1 the stream
  ARGV   1 `created` as read   2 new base   3 count   4 first time   5 blob, '' when nothing is left
         6.. base, last, version of each old node, in order
  Reply  1 when replaced, 0 when the race was lost
]]
redis.register_function{
  function_name = 'hw_stream_replace',
  callback = function(keys, args)
    local K, stream = keys[1], load_stream(keys[1])
    local base, count = tonumber(args[2]), tonumber(args[3])
    if stream.created ~= args[1] or stream.first > base then return 0 end
    local old, last, version = {}, 0, 0
    for i = 6, #args, 3 do
      local found = redis.call('ZRANGE', K .. ':index', args[i + 1], args[i + 1], 'BYSCORE')
      local node = found[1] and parse_node(found[1])
      if not node or node.base ~= tonumber(args[i]) or node.version ~= tonumber(args[i + 2]) then
        return 0
      end
      node.member, node.last = found[1], tonumber(args[i + 1])
      old[#old + 1] = node
      last, version = node.last, math.max(version, node.version)
    end
    local bytes, holes = 0, 0
    for _, node in ipairs(old) do
      redis.call('HDEL', K .. ':nodes', digits(node.base))
      redis.call('ZREM', K .. ':index', node.member)
      bytes = bytes - node.bytes
      holes = holes - (node.last - node.base + 1 - node.count)
    end
    put_node(K, base, last, count, tonumber(args[4]), old[#old].newest, version + 1, args[5])
    redis.call('HINCRBY', K, 'bytes', bytes + #args[5])
    redis.call('HINCRBY', K, 'holes', holes + last - base + 1 - count)
    redis.call('HSET', K, 'first', math.max(stream.first, old[1].base < base and base or 0))
    return 1
  end,
  flags = { 'allow-oom' },
}

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
    local K, created, sealed = keys[1], args[1], tonumber(args[2])
    local stream = load_stream(K)
    if stream.created ~= created or stream.sealed ~= sealed then return -1 end
    local newest, cold = 0, stream.cold >= stream.sealed
    local before = redis.call('ZRANGE', K .. ':index', -1, -1)
    if before[1] then newest = parse_node(before[1]).newest end
    for i = 3, #args, 5 do
      local last, count, time = tonumber(args[i]), tonumber(args[i + 1]), tonumber(args[i + 2])
      local blob = args[i + 4]
      newest = math.max(newest, tonumber(args[i + 3]))
      put_node(K, stream.sealed + 1, last, count, time, newest, 1, blob)
      redis.call('HINCRBY', K, 'bytes', #blob)
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
    local K, created, base, count = keys[1], args[1], tonumber(args[2]), tonumber(args[3])
    local time, blob = tonumber(args[4]), args[5]
    local stream = load_stream(K)
    if stream.created ~= created or stream.first > base then return 0 end
    local old, last, version = {}, 0, 0
    for i = 6, #args, 3 do
      local old_base, old_last, old_version = tonumber(args[i]), args[i + 1], tonumber(args[i + 2])
      local found = redis.call('ZRANGE', K .. ':index', old_last, old_last, 'BYSCORE')
      local node = found[1] and parse_node(found[1])
      if not node or node.base ~= old_base or node.version ~= old_version then return 0 end
      node.member, node.last = found[1], tonumber(old_last)
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
    put_node(K, base, last, count, time, old[#old].newest, version + 1, blob)
    redis.call('HINCRBY', K, 'bytes', bytes + #blob)
    redis.call('HINCRBY', K, 'holes', holes + last - base + 1 - count)
    redis.call('HSET', K, 'first', math.max(stream.first, old[1].base < base and base or 0))
    return 1
  end,
  flags = { 'allow-oom' },
}

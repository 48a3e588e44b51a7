--[[
  hw_stream_seal: replace the oldest part of the tail by packed nodes.
  Any client may seal at any time: it names the stream and the boundary that it read, and if either has
  changed since, nothing happens.
  KEYS   1 the stream
  ARGV   1 `created` as read    2 `sealed` as read
         3.. last offset, count, first time, newest time, blob, ... (nodes in order, from sealed + 1)
  Reply  the new boundary, or -1 when another client was faster
]]
redis.register_function{
  function_name = 'hw_stream_seal',
  callback = function(keys, args)
    local K, created, sealed = keys[1], args[1], tonumber(args[2])
    local stream, cold, bytes, replacing = load_stream(K, 'cold', 'bytes', 'replacing')
    if stream.created ~= created or stream.sealed ~= sealed then return -1 end
    finish_replace(K, replacing)
    drop_unfinished_nodes(K, stream)
    cold, bytes = cold_end(stream, cold), tonumber(bytes or 0)
    local newest, all_cold = 0, cold >= stream.sealed
    local before = redis.call('ZRANGE', K .. ':index', digits(stream.sealed), '-inf', 'BYSCORE', 'REV',
      'LIMIT', 0, 1)
    if before[1] then newest = parse_node(before[1]).newest end
    for i = 3, #args, 5 do
      local last, count, time = tonumber(args[i]), tonumber(args[i + 1]), tonumber(args[i + 2])
      local base, blob = stream.sealed + 1, args[i + 4]
      newest = math.max(newest, tonumber(args[i + 3]))
      redis.call('ZADD', K .. ':index', digits(last), node_member(base, last, count, time, newest, blob))
      redis.call('HSET', K .. ':nodes', digits(base), blob)
      bytes = bytes + #blob
      stream.sealed = last
    end
    -- This makes the nodes count; until then the next seal drops them.
    redis.call('HSET', K, 'sealed', digits(stream.sealed), 'bytes', digits(bytes), 'cold',
      digits(all_cold and stream.sealed or cold))
    trim_tail(K, stream)
    return stream.sealed
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_stream_replace: replace several neighbouring nodes by one, which may have fewer messages.
  Offsets do not change; missing messages become holes. When the new node begins later than the old ones,
  the messages before it are evicted. Nothing happens when one of the old nodes was replaced or evicted
  since it was read.
  KEYS   1 the stream
  ARGV   1 `created` as read   2 new base   3 count   4 first time   5 blob, '' when nothing is left
         6.. base, last, version of each old node, in order
  Reply  1 when replaced, 0 when another client was faster
]]
redis.register_function{
  function_name = 'hw_stream_replace',
  callback = function(keys, args)
    local K, created, base, count = keys[1], args[1], tonumber(args[2]), tonumber(args[3])
    local time, blob = tonumber(args[4]), args[5]
    local stream, bytes, holes, replacing = load_stream(K, 'bytes', 'holes', 'replacing')
    if stream.created ~= created or stream.first > base then return 0 end
    finish_replace(K, replacing)
    bytes, holes = tonumber(bytes or 0), tonumber(holes or 0)
    local old, bases = {}, {}
    for i = 6, #args, 3 do
      local old_base, old_last, old_version = tonumber(args[i]), args[i + 1], tonumber(args[i + 2])
      local found = redis.call('ZRANGE', K .. ':index', old_last, old_last, 'BYSCORE')
      local node = found[1] and parse_node(found[1])
      if not node or node.base ~= old_base or node.version ~= old_version then return 0 end
      node.last = tonumber(old_last)
      old[#old + 1], bases[#bases + 1] = node, digits(node.base)
      bytes = bytes - node.bytes
      holes = holes - (node.last - node.base + 1 - node.count)
    end
    local last, first = old[#old].last, old[1].base < base and base or 0
    local member = node_member(base, last, count, time, old[#old].newest, blob)
    local change = replacing_text(base, last, count, time, old[1].last, member, bases)
    redis.call('HSET', K .. ':nodes', 'new', blob)
    redis.call('HSET', K, 'replacing', change, 'bytes', digits(bytes + #blob),
      'holes', digits(holes + last - base + 1 - count), 'first', digits(math.max(stream.first, first)))
    finish_replace(K, change)
    return 1
  end,
  flags = { 'allow-oom' },
}

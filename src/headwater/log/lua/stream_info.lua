--[[
  hw_stream_info: where a stream stands, without reading its messages.
  KEYS   1 the stream
  Reply  name, value, ...: first, last, length (messages), bytes, nodes, sealed, created_ms (0 when it was
         never written), last_time_ms (of the newest message), retention { limit, value or '', ... },
         auto_compact (1 when housekeepers are to compact it), readers { reader, offset it needs, ... },
         groups { group, ... }
]]
redis.register_function{
  function_name = 'hw_stream_info',
  callback = function(keys)
    local K = keys[1]
    local stream, f = load_stream(K), redis.call('HMGET', K, 'bytes', 'holes', 'compact')
    return {
      'first', stream.first,
      'last', stream.last,
      'length', stream.last - stream.first + 1 - tonumber(f[2] or 0),
      'bytes', tonumber(f[1] or 0) + tail_bytes(K, stream),
      'nodes', redis.call('ZCOUNT', K .. ':index', '-inf', digits(stream.sealed)),
      'sealed', stream.sealed,
      'created_ms', math.floor(tonumber(stream.created) / 1000),
      'last_time_ms', stream.time,
      'retention', retention_words(K),
      'auto_compact', (f[3] or '') == '' and 0 or 1,
      'readers', redis.call('ZRANGE', K .. ':readers', 0, -1, 'WITHSCORES'),
      'groups', redis.call('ZRANGE', K .. ':groups', 0, -1),
    }
  end,
  flags = { 'no-writes' },
}

--[[
  hw_stream_sequence: the newest sequence of a producer that is remembered.
  KEYS   1 the stream
  ARGV   1 producer
  Reply  the sequence, or -1 when nothing is remembered
]]
redis.register_function{
  function_name = 'hw_stream_sequence',
  callback = function(keys, args)
    local K, producer = keys[1], args[1]
    return tonumber(redis.call('HGET', K .. ':answers', producer) or -1)
  end,
  flags = { 'no-writes' },
}

--[[
  hw_stream_offset_at: where a time begins.
  KEYS   1 the stream
  ARGV   1 time, ms   2 lowest offset of interest
  Reply  { first offset to look at, last offset to look at, 1 when there is more after it }: no
         message from the lowest offset of interest up to that range is at or after the time.
  Cost   O(log nodes)

  The index knows times that never fall, but the message that had such a time may be gone since;
  then the caller looks further.
]]
redis.register_function{
  function_name = 'hw_stream_offset_at',
  callback = function(keys, args)
    local K, time, from = keys[1], tonumber(args[1]), args[2]
    local stream = load_stream(K)
    local low = redis.call('ZCOUNT', K .. ':index', '-inf', '(' .. from)
    local high = redis.call('ZCARD', K .. ':index')
    while low < high do
      local middle = math.floor((low + high) / 2)
      if parse_node(redis.call('ZRANGE', K .. ':index', middle, middle)[1]).newest >= time then
        high = middle
      else
        low = middle + 1
      end
    end
    local found = redis.call('ZRANGE', K .. ':index', low, low, 'WITHSCORES')
    if found[1] then
      return { math.max(parse_node(found[1]).base, stream.first), tonumber(found[2]), 1 }
    end
    return { stream.sealed + 1, stream.last, 0 }
  end,
  flags = { 'no-writes' },
}

--[[
  hw_stream_delete: remove a stream with its groups and readers.
  KEYS   1 the stream
  Reply  1 when it existed
]]
redis.register_function{
  function_name = 'hw_stream_delete',
  callback = function(keys)
    local K = keys[1]
    for _, name in ipairs(redis.call('ZRANGE', K .. ':groups', 0, -1)) do remove_group(K, name) end
    drop_publishes(K)
    local existed = redis.call('EXISTS', K)
    redis.call('UNLINK', K, K .. ':tail', K .. ':nodes', K .. ':index', K .. ':producers', K .. ':answers',
      K .. ':readers', K .. ':groups', K .. ':remade')
    return existed
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_stream_tidy: forget producers that have been silent and members that are gone.
  KEYS   1 the stream
  ARGV   1 ms of silence after which a producer's answers go
         2 ms of silence after which a member goes
  Reply  { producers forgotten, members forgotten }
]]
redis.register_function{
  function_name = 'hw_stream_tidy',
  callback = function(keys, args)
    local K, producer_ms, member_ms = keys[1], tonumber(args[1]), tonumber(args[2])
    local now = server_ms()
    complete_stream(K)
    local silent = forget_producers(K, now - producer_ms)
    local members, stream = 0, load_stream(K)
    for _, name in ipairs(redis.call('ZRANGE', K .. ':groups', 0, -1)) do
      local G = group_key(K, name)
      members = members + redis.call('ZREMRANGEBYSCORE', G .. ':members', '-inf', digits(now - member_ms))
      open_group(G)
      take_back_old_boxes(G, now)
      forget_expired_waiters(G, now, 0)
      serve(K, name, stream, now)
    end
    return { silent, members }
  end,
  flags = { 'allow-oom' },
}

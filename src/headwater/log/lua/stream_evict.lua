--[[
  hw_stream_evict: evict the oldest messages, with or without regard to readers that still need them.
  KEYS   1 the stream
  ARGV   1 offset: evict up to it; or -n: keep at least the newest n messages
         2 '1' to stop before the slowest registered reader
  Reply  { messages evicted, 1 when another call must free more, 2 when the same call must be repeated
           because there were too many readers to check in one call,
           { base, last, count, version of a node with holes that the limit cuts through, and the
           first offset of it to keep } or {} (such a node is left whole), created }
]]
redis.register_function{
  function_name = 'hw_stream_evict',
  callback = function(keys, args)
    local K, limit, spare_readers = keys[1], tonumber(args[1]), args[2]
    local stream = load_stream(K)
    if limit < 0 then limit = limit_for(K, stream, -limit) end
    local unsure = false
    if spare_readers == '1' then
      local needed, _
      needed, _, unsure = slowest_reader(K, limit)
      if needed then limit = math.min(limit, needed - 1) end
    end
    local gone, more, in_the_way = evict(K, stream, limit)
    return { gone, unsure and 2 or more, in_the_way, stream.created }
  end,
  flags = { 'allow-oom' },
}

-- Returns how far the policy evicts. By age, a node is evicted only when its newest message is too old. Bounded: a
-- later call continues from the new first offset. place, freed: number and bytes of the nodes that an earlier
-- call has covered. Returns the limit, and place and freed for the next call when there may be more.
local function retention_limit(K, stream, policy, place, freed)
  local limit = stream.first - 1
  if policy.max_count then limit = math.max(limit, limit_for(K, stream, policy.max_count)) end
  local too_old = policy.max_age_ms and server_ms() - policy.max_age_ms
  local too_much = 0
  if policy.max_bytes then
    too_much = tonumber(redis.call('HGET', K, 'bytes') or 0) - freed - policy.max_bytes + tail_bytes(K, stream)
  end
  if not too_old and too_much <= 0 then return limit end
  local nodes = redis.call('ZRANGE', K .. ':index', place, place + EVICT_NODES - 1, 'WITHSCORES')
  for i = 1, #nodes, 2 do
    local node = parse_node(nodes[i])
    if not (too_old and node.newest < too_old) and too_much <= 0 then return limit end
    limit = math.max(limit, tonumber(nodes[i + 1]))
    too_much, freed = too_much - node.bytes, freed + node.bytes
  end
  if #nodes == 2 * EVICT_NODES then return limit, place + EVICT_NODES, freed end
  if too_much > 0 then
    -- The unsealed part is counted as a whole; a later call counts what is left of it.
    local tail = stream.last - math.max(stream.sealed, limit)
    if tail > 0 then
      local each = tail_bytes(K, stream) / (stream.last - stream.sealed)
      limit = math.max(limit, stream.sealed) + math.min(tail, math.ceil(too_much / each))
    end
  end
  if too_old then
    local tail = redis.call('XRANGE', K .. ':tail', '0-' .. digits(stream.sealed + 1), '+', 'COUNT', 1024)
    for _, entry in ipairs(tail) do
      local time = time_of(entry_field(entry, 't') or '')
      if not time or time >= too_old then return limit end
      limit = math.max(limit, tonumber(string.sub(entry[1], 3)))
    end
  end
  return limit
end

--[[
  hw_stream_retain_preview: compute how far a retention policy would evict, without regard to readers. Changes nothing.
  KEYS   1 the stream
  ARGV   1 place to continue from, 0 to begin   2 bytes of what was before it, 0 to begin
         3.. the policy: limit, value, ... as hw_stream_retain takes it
  Reply  { first, last, the last offset that would be evicted, place to continue from or -1, bytes before it }
]]
redis.register_function{
  function_name = 'hw_stream_retain_preview',
  callback = function(keys, args)
    local K, place, freed = keys[1], tonumber(args[1]), tonumber(args[2])
    local stream, policy = load_stream(K), {}
    for i = 3, #args, 2 do policy[args[i]] = tonumber(args[i + 1]) end
    local limit, following, bytes = retention_limit(K, stream, policy, place, freed)
    return { stream.first, stream.last, math.min(limit, stream.last), following or -1, bytes or 0 }
  end,
  flags = { 'no-writes' },
}

--[[
  hw_stream_retain: set the retention policy when given, and apply it.
  Never passes the slowest registered reader unless forced.
  KEYS   1 the stream
  ARGV   1 'set' or 'apply'   2 '1' to pass readers
         3.. with 'set' the whole policy: limit, value, ... of max_count, max_age_ms, max_bytes, max_idle_ms; a limit
             that is '' or left out is none; max_idle_ms: retention does not wait for readers that were
             silent for longer; when it changes, retention waits for all of them again
  Reply  { messages evicted, 1 when another call has more to do,
           offsets held back for readers, the slowest reader or '' }
]]
redis.register_function{
  function_name = 'hw_stream_retain',
  callback = function(keys, args)
    local K, verb, force = keys[1], args[1], args[2]
    local stream, policy = load_stream(K), {}
    if verb == 'set' then
      for i = 3, #args, 2 do policy[args[i]] = args[i + 1] end
      if tonumber(policy.max_idle_ms or nil) ~= most_idle_ms(K) then wait_for_all(K) end
      set_retention(K, policy)
    end
    local wanted = retention_limit(K, stream, load_retention(K), 0, 0)
    local limit, who, unsure = wanted, '', false
    if force ~= '1' then
      local needed, reader
      needed, reader, unsure = slowest_reader(K, limit)
      if needed and needed - 1 < limit then limit, who = needed - 1, reader end
    end
    local before = stream.first
    local gone, more = evict(K, stream, limit)
    if unsure or stream.first > before and who == '' then more = 1 end
    return { gone, more, math.max(wanted - math.max(limit, stream.first - 1), 0), who }
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_stream_reader: register the position of a reader outside the log, so that retention waits for it.
  KEYS   1 the stream
  ARGV   1 reader   2 the next offset it needs, or '' to forget it   3 '1' to keep a higher position, or ''
  Reply  1
]]
redis.register_function{
  function_name = 'hw_stream_reader',
  callback = function(keys, args)
    local K, reader, position, forward = keys[1], args[1], args[2], args[3]
    if position == '' then
      redis.call('ZREM', K .. ':readers', reader)
      redis.call('ZREM', K .. ':silent', reader)
      redis.call('ZREM', K .. ':seen', reader)
    else
      local before = redis.call('ZSCORE', K .. ':silent', reader) or redis.call('ZSCORE', K .. ':readers', reader)
      if forward == '1' and before then position = digits(math.max(tonumber(before), tonumber(position))) end
      -- It is seen first: between these, retention would not find it silent.
      redis.call('ZADD', K .. ':seen', digits(server_ms()), reader)
      redis.call('ZADD', K .. ':readers', position, reader)
      redis.call('ZREM', K .. ':silent', reader)
    end
    return 1
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_stream_info: get the state of a stream, without reading its messages.
  KEYS   1 the stream
  Reply  name, value, ...: first, last, length (messages), bytes, nodes, sealed, created_ms (0 when it was
         never written), last_time_ms (of the newest message), retention { limit, value or '', ... },
         auto_compact (1 when housekeepers are to compact it), readers { reader, offset it needs, ... },
         groups { group, ... } (the first 1000), slowest (the reader or group that needs the lowest
         offset) or '', slowest_next (that offset) or '', slowest_idle_ms (since it was seen last) or '',
         abandoned (how many groups retention no longer waits for), tail_bytes (of bytes, what is not sealed),
         reader_lag_ms { reader, age of the oldest message that it needs or 0, ... } (of a sealed message, the age
         of the newest message of its node or before), reader_idle_ms { reader, since it was seen last, ... },
         missing { first offset, last offset, ... } (of messages that the store has lost, as far as a reader has met
         them; the latest 16 ranges)
]]
local LISTED_GROUPS = 1000

-- Returns the slowest reader or group, judged by a few groups: their bounds are not moved here.
local function look_for_slowest(K)
  local outside = redis.call('ZRANGE', K .. ':readers', 0, 0, 'WITHSCORES')
  local who, position, seen = outside[1], tonumber(outside[2] or nil), nil
  if who then seen = tonumber(redis.call('ZSCORE', K .. ':seen', who) or nil) end
  local found = redis.call('ZRANGE', K .. ':positions', '-inf', '(+inf', 'BYSCORE', 'LIMIT', 0, 16, 'WITHSCORES')
  for i = 1, #found, 2 do
    if position and tonumber(found[i + 1]) > position then break end
    local G = group_key(K, found[i])
    local at = group_position(G)
    if at and (not position or at < position) then who, position, seen = found[i], at, group_seen(G) end
  end
  return who, position, seen
end

-- Returns how long messages have waited for each reader, from the names and positions of all.
local function reader_lags(K, stream, readers)
  local lags, now = {}, readers[1] and server_ms()
  for i = 1, #readers, 2 do
    local since = tonumber(looks.time_at(K, stream, tonumber(readers[i + 1])))
    lags[i], lags[i + 1] = readers[i], since and math.max(now - since, 0) or 0
  end
  return lags
end

-- Returns what was lost, without what was evicted since.
local function missing_ranges(K, stream)
  local ranges = {}
  for first, last in string.gmatch(redis.call('HGET', K, 'missing') or '', '(%d+)-(%d+)') do
    if tonumber(last) >= stream.first then
      ranges[#ranges + 1], ranges[#ranges + 2] = math.max(tonumber(first), stream.first), tonumber(last)
    end
  end
  return ranges
end

-- Returns how long each reader has been silent.
local function reader_silences(K)
  local found, now = redis.call('ZRANGE', K .. ':seen', 0, -1, 'WITHSCORES'), server_ms()
  for i = 2, #found, 2 do found[i] = math.max(now - tonumber(found[i]), 0) end
  return found
end

function looks.stream(K)
  local stream, time = load_stream(K, 'time')
  local f = redis.call('HMGET', K, 'bytes', 'holes', 'compact')
  local slowest, slowest_next, slowest_seen = look_for_slowest(K)
  local unsealed = tail_bytes(K, stream)
  local readers = redis.call('ZRANGE', K .. ':silent', 0, -1, 'WITHSCORES')
  for _, word in ipairs(redis.call('ZRANGE', K .. ':readers', 0, -1, 'WITHSCORES')) do readers[#readers + 1] = word end
  return {
    'first', stream.first,
    'last', stream.last,
    'length', stream.last - stream.first + 1 - tonumber(f[2] or 0),
    'bytes', tonumber(f[1] or 0) + unsealed,
    'nodes', redis.call('ZCOUNT', K .. ':index', '-inf', digits(stream.sealed)),
    'sealed', stream.sealed,
    'created_ms', math.floor(tonumber(stream.created) / 1000),
    'last_time_ms', tonumber(time or 0),
    'retention', retention_words(K),
    'auto_compact', (f[3] or '') == '' and 0 or 1,
    'readers', readers,
    'groups', redis.call('ZRANGE', K .. ':groups', 0, LISTED_GROUPS - 1),
    'slowest', slowest or '',
    'slowest_next', slowest_next or '',
    'slowest_idle_ms', slowest_seen and math.max(server_ms() - slowest_seen, 0) or '',
    'abandoned', redis.call('ZCOUNT', K .. ':positions', '+inf', '+inf'),
    'tail_bytes', unsealed,
    'reader_lag_ms', reader_lags(K, stream, readers),
    'reader_idle_ms', reader_silences(K),
    'missing', missing_ranges(K, stream),
  }
end

redis.register_function{
  function_name = 'hw_stream_info',
  callback = function(keys) return looks.stream(keys[1]) end,
  flags = { 'no-writes' },
}

--[[
  hw_stream_lag: get the bounds of a stream from a position on.
  KEYS   1 the stream
  ARGV   1 offset
  Reply  { the offset, or the first offset if that is higher; the last offset; server's ms }
]]
redis.register_function{
  function_name = 'hw_stream_lag',
  callback = function(keys, args)
    local K, position = keys[1], tonumber(args[1])
    local stream = load_stream(K)
    return { math.max(position, stream.first), stream.last, server_ms() }
  end,
  flags = { 'no-writes' },
}

--[[
  hw_stream_groups: get further names of groups, of a stream with many.
  KEYS   1 the stream
  ARGV   1 place to continue from
  Reply  1000 names at most
]]
redis.register_function{
  function_name = 'hw_stream_groups',
  callback = function(keys, args)
    local K, place = keys[1], tonumber(args[1])
    return redis.call('ZRANGE', K .. ':groups', place, place + LISTED_GROUPS - 1)
  end,
  flags = { 'no-writes' },
}

--[[
  hw_stream_sequence: get the newest remembered sequence of a producer.
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
  hw_stream_offset_at: find the offsets at which a time begins.
  KEYS   1 the stream
  ARGV   1 time, ms   2 lowest offset of interest
  Reply  { first offset to look at, last offset to look at, 1 when there is more after it }: no
         message from the lowest offset of interest up to that range is at or after the time.
  Cost   O(log nodes)

  Times in the index never decrease, but the message that had such a time may be gone; then the caller looks
  further.
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
  hw_stream_delete: delete a stream with its groups and readers, at once for all clients.
  KEYS   1 the stream
  Reply  { 1 when it existed, 1 when hw_stream_free has to free keys of its groups }
]]
redis.register_function{
  function_name = 'hw_stream_delete',
  callback = function(keys)
    local K = keys[1]
    local known = redis.call('HLEN', K) > (load_stream(K).era == '' and 0 or 1)
    local later = redis.call('ZCARD', K .. ':groups') > FREE_GROUPS or redis.call('EXISTS', K .. ':deleted') == 1
      or redis.call('HLEN', K .. ':publishing') > deleted_publishes.STEP
    if not later then
      for _, name in ipairs(redis.call('ZRANGE', K .. ':groups', 0, -1)) do
        if not free_group(K, name) then
          later = true
          break
        end
      end
    end
    local era = digits(server_us())
    if later then
      -- Groups that are listed as deleted are freed, even if this call stops before the stream is gone.
      redis.call('ZADD', K .. ':deleted', era, era)
      deleted_publishes.set_aside(K, era)
    else
      drop_publishes(K)
    end
    redis.call('UNLINK', K, K .. ':tail', K .. ':nodes', K .. ':index', K .. ':producers', K .. ':answers',
      K .. ':readers', K .. ':silent', K .. ':seen', K .. ':positions', K .. ':remade')
    if later then
      set_fields(K, { 'era', era })
      if redis.call('EXISTS', K .. ':groups') == 1 then
        redis.call('RENAME', K .. ':groups', K .. ':deleted:' .. era)
      end
    else
      redis.call('UNLINK', K .. ':groups')
    end
    return { known and 1 or 0, later and 1 or 0 }
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_stream_free: free keys of groups of a deleted stream, some in each call.
  A stream that was created under the same name since is not changed.
  KEYS   1 the stream
  Reply  1 when there are more
]]
redis.register_function{
  function_name = 'hw_stream_free',
  callback = function(keys) return free_deleted(keys[1]) and 1 or 0 end,
  flags = { 'allow-oom' },
}

--[[
  hw_stream_tidy: forget silent producers and members.
  KEYS   1 the stream
  ARGV   1 ms of silence after which a producer's replies are forgotten
         2 ms of silence after which a member is forgotten   3 place among the groups to continue from, 0 to begin
  Reply  { producers forgotten, members forgotten, place among the groups to continue from or -1 }
]]
local function tidy_group(K, name, stream, now, member_ms)
  local G = group_key(K, name)
  local group = open_group(G, stream)
  if not group then
    -- A listed name without a group was left by a call that stopped half-way.
    if free_group(K, name) then unlist_group(K, name) end
    return 0
  end
  -- The time of the last read is kept longer than the members.
  redis.call('HSET', G, 'seen', digits(group_seen(G)))
  local gone = redis.call('ZREMRANGEBYSCORE', G .. ':members', '-inf', digits(now - member_ms))
  take_back_old_boxes(K, name, group, now)
  forget_expired_waiters(G, now, 0)
  serve(K, name, stream, now)
  return gone
end

redis.register_function{
  function_name = 'hw_stream_tidy',
  callback = function(keys, args)
    local K, producer_ms, member_ms, place = keys[1], tonumber(args[1]), tonumber(args[2]), tonumber(args[3])
    local now = server_ms()
    complete_stream(K)
    local stream = load_stream(K)
    local silent, members = place == 0 and forget_producers(K, now - producer_ms) or 0, 0
    local names = redis.call('ZRANGE', K .. ':groups', place, place + FREE_GROUPS - 1)
    for _, name in ipairs(names) do members = members + tidy_group(K, name, stream, now, member_ms) end
    return { silent, members, #names == FREE_GROUPS and place + FREE_GROUPS or -1 }
  end,
  flags = { 'allow-oom' },
}

--[[
  Automatic compaction: whether a stream asks for it, and whether it is worth the work. The hash K keeps
  `compact` (age at which a delete marker may be removed, ms; '' or none: not asked for) and `compacted` (the
  last offset that a compaction has seen).
]]

--[[
  hw_stream_auto_compact: let the housekeeper compact the stream, or no longer.
  KEYS   1 the stream
  ARGV   1 ms after which delete markers may be removed, '' for no compaction
  Reply  1
]]
redis.register_function{
  function_name = 'hw_stream_auto_compact',
  callback = function(keys, args)
    local K, marker_ms = keys[1], args[1]
    redis.call('HSET', K, 'compact', marker_ms)
    return 1
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_stream_compact_due: check whether a compaction is due: at least half of the messages were written
  since the last one. So the log is at most twice as long as necessary, and each message is read a bounded
  number of times, however long the log exists.
  KEYS   1 the stream
  Reply  { ms after which delete markers may be removed, last offset, created }, or {} when none is due
]]
redis.register_function{
  function_name = 'hw_stream_compact_due',
  callback = function(keys)
    local K, stream = keys[1], load_stream(keys[1])
    local f = redis.call('HMGET', K, 'compact', 'compacted', 'holes')
    if (f[1] or '') == '' then return {} end
    local fresh = stream.last - math.max(tonumber(f[2] or 0), stream.first - 1)
    local length = stream.last - stream.first + 1 - tonumber(f[3] or 0)
    if fresh == 0 or 2 * fresh < length then return {} end
    return { tonumber(f[1]), stream.last, stream.created }
  end,
  flags = { 'no-writes' },
}

--[[
  hw_stream_compacted: record that a compaction has seen everything up to an offset.
  KEYS   1 the stream
  ARGV   1 `created` as read   2 the offset
  Reply  1, or 0 when the stream was created again since
]]
redis.register_function{
  function_name = 'hw_stream_compacted',
  callback = function(keys, args)
    local K, created, offset = keys[1], args[1], args[2]
    if load_stream(K).created ~= created then return 0 end
    local known = tonumber(redis.call('HGET', K, 'compacted') or 0)
    if tonumber(offset) > known then redis.call('HSET', K, 'compacted', offset) end
    return 1
  end,
  flags = { 'allow-oom' },
}

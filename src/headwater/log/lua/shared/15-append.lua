--[[
  Appending: what every way into a stream has in common. The caller loads the stream, appends to it
  and, when it is done, notes where the stream ends.
]]
-- Loads a stream that is about to be written; its first write makes it.
local function open_stream(K)
  local stream = load_stream(K)
  if stream.created == '0' then
    stream.created = digits(server_us())
    redis.call('HSET', K, 'created', stream.created, 'first', 1, 'sealed', 0, 'bytes', 0, 'holes', 0,
      'format', WRITES)
  end
  return stream
end

-- A batch that fills a node goes straight to the nodes when everything before it is there; the
-- tail then holds a bare entry, which wakes blocked readers.
local function append_packed(K, stream, now, count, time, newest, fit, blob)
  local base = stream.last + 1
  time, newest = time or now, newest or now
  stream.last = stream.last + count
  stream.time = math.max(stream.time, newest)
  local id = '0-' .. digits(stream.last)
  if fit and stream.sealed == base - 1 then
    put_node(K, base, stream.last, count, time, stream.time, 1, blob)
    redis.call('HINCRBY', K, 'bytes', #blob)
    redis.call('XADD', K .. ':tail', 'MAXLEN', 1, id, 'n', count)
    stream.sealed = stream.last
    redis.call('HSET', K, 'sealed', stream.sealed)
  else
    redis.call('XADD', K .. ':tail', id, 'n', count, 't', digits(newest), 'd', blob)
  end
end

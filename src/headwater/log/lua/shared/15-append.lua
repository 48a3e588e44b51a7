--[[
  Appending: what every way into a stream has in common.

  Functions do not roll back, so a call may stop between any two of its changes. The tail says what was
  written; everything else is derived from it. An entry is one of

    k <tag> v <value> t <time>               one message
    h <headers> k <tag> v <value> t <time>   one message that has headers
    n <count> t <newest time> d <node>       a packed batch
    n <count> t <time> w <newest time>       a batch that is in the nodes already

  each with a checksum behind its time (05-checks.lua), and the last entry of a write carries what else must be noted with it:

    p <producer> s <sequence:first:digest>                 the answer of a producer
    q <producer> s <state>                                 how far a publish is (16-staging.lua)

  while those before it carry `m`: more belongs to them. So the entry without `m` makes the whole of a
  write true, at once. Then the index, the answer and, as the last of all, `last` are noted. When the
  tail goes beyond `last`, a call stopped in between: the next one finds that its entry is refused, and
  completes what is whole or drops what is not (25-complete.lua). Readers who wait on the tail leave an
  entry with `m` at its end alone.

  Entries of older writers have no checksum, and a batch in the nodes had only `n`.
]]
local MORE = { 'm', '' }

-- Loads a stream that is about to be written; its first write makes it.
local function open_stream(K)
  local stream = load_stream(K)
  if stream.created == '0' then
    stream.created = digits(server_us())
    redis.call('HSET', K, 'created', stream.created, 'first', 1, 'sealed', 0, 'bytes', 0, 'holes', 0,
      'format', WRITES)
  end
  continue_history(K, stream)
  return stream
end

-- Adds an entry to the tail; mark: further fields, or nil. Returns false when the tail goes beyond
-- what is noted as the end of the stream.
local function add_entry(K, id, mark, ...)
  local reply
  if mark then
    local words = { ... }
    for _, word in ipairs(mark) do words[#words + 1] = word end
    reply = redis.pcall('XADD', K .. ':tail', id, unpack(words))
  else
    reply = redis.pcall('XADD', K .. ':tail', id, ...)
  end
  if type(reply) ~= 'table' then return true end
  if string.find(reply.err, 'equal or smaller', 1, true) then return false end
  error(reply)
end

local function entry_field(entry, name)
  local fields = entry[2]
  for i = 1, #fields, 2 do
    if fields[i] == name then return fields[i + 1] end
  end
  return nil
end

local function offset_of(entry)
  return tonumber(string.sub(entry[1], 3))
end

local function newest_entry(K)
  return redis.call('XREVRANGE', K .. ':tail', '+', '-', 'COUNT', 1)[1]
end

local function tail_is_ahead(K, stream)
  local newest = newest_entry(K)
  return newest and offset_of(newest) > stream.last
end

-- Notes that a node is in its place; it is indexed by note_end.
local function index_node(stream, base, last, count, time, blob)
  stream.index, stream.added = stream.index or {}, (stream.added or 0) + #blob
  local n = #stream.index
  stream.index[n + 1] = digits(last)
  stream.index[n + 2] = node_member(base, last, count, time, stream.time, blob)
  stream.sealed = last
end

-- A batch that fills a node goes straight to the nodes when everything before it is there; its entry
-- in the tail wakes blocked readers. Returns false as add_entry does; nothing is changed then.
local function append_packed(K, stream, now, count, time, newest, fit, blob, mark)
  local base, last = stream.last + 1, stream.last + count
  if has_headers(blob) then note_headers(K) end
  time, newest = time or now, newest or now
  stream.time = math.max(stream.time, newest)
  local id = '0-' .. digits(last)
  if fit and stream.sealed == stream.last then
    -- The first node must not take the place of one that nobody has noted yet.
    if not stream.index and tail_is_ahead(K, stream) then return false end
    redis.call('HSET', K .. ':nodes', digits(base), blob)
    local checked = checked_time(node_crc(blob), last, time, count)
    local done, added = pcall(add_entry, K, id, mark, 'n', count, 't', checked, 'w', digits(newest))
    if not done then
      redis.pcall('HDEL', K .. ':nodes', digits(base))
      error(added)
    end
    if not added then return false end
    index_node(stream, base, last, count, time, blob)
  else
    local checked = checked_time(node_crc(blob), last, newest, count)
    if not add_entry(K, id, mark, 'n', count, 't', checked, 'd', blob) then return false end
  end
  stream.last = last
  return true
end

-- Notes where the stream ends; from here on everybody sees what was appended.
local function note_end(K, stream)
  if not stream.index then
    redis.call('HSET', K, 'last', digits(stream.last), 'time', digits(stream.time))
    return note_known_end(K, stream.last)
  end
  redis.call('ZADD', K .. ':index', unpack(stream.index))
  local bytes = tonumber(redis.call('HGET', K, 'bytes') or 0) + stream.added
  redis.call('HSET', K, 'last', digits(stream.last), 'time', digits(stream.time), 'sealed',
    digits(stream.sealed), 'bytes', digits(bytes))
  note_known_end(K, stream.last)
  stream.index, stream.added = nil, nil
  trim_tail(K, stream)
end

--[[
  Appending: what all functions that write to a stream share.

  Functions do not roll back, so a call may stop between any two of its changes. The tail defines what was
  written; everything else is derived from it. An entry is one of

    k <tag> v <value> t <time>               one message
    h <headers> k <tag> v <value> t <time>   one message that has headers
    n <count> t <newest time> d <node>       a packed batch
    n <count> t <time> w <newest time>       a batch that is in the nodes already

  each with a checksum after its time (05-checks.lua). The last entry of a write also carries what must be
  stored with it:

    p <producer> s <sequence:first:digest>                 the reply to a producer
    q <producer> s <state>                                 how far a publish is (16-staging.lua)

  The entries before it carry `m`, for more. So the entry without `m` commits the whole write at once. After it
  the index, the reply and, last of all, `last` are stored. When the tail goes beyond `last`, a call stopped in
  between: the entry of the next call is refused, and that call completes the write if it is whole, or drops it
  if it is not (25-complete.lua). Readers that wait on the tail ignore an entry with `m` at its end.

  Entries of writers that compute no CRC have no checksum.
]]
local MORE = { 'm', '' }

-- Loads a stream that is about to be written; its first write creates it. plain: no node is added, and the
-- history is not needed.
local function open_stream(K, plain)
  local stream, time, cold, bytes, history
  if plain then
    stream, time, cold = load_stream(K, 'time', 'cold')
  else
    stream, time, cold, bytes, history = load_stream(K, 'time', 'cold', 'bytes', 'history')
    stream.bytes, stream.history = tonumber(bytes or 0), history or ''
  end
  stream.time, stream.cold = to_number(time or 0), cold_end(stream, cold)
  if stream.created == '0' then
    stream.created = digits(server_us())
    redis.call('HSET', K, 'created', stream.created, 'first', 1, 'sealed', 0, 'bytes', 0, 'holes', 0,
      'format', WRITES)
  end
  continue_history(K, stream)
  return stream
end

-- Returns false when an entry was refused because the tail goes beyond `last`; any other refusal is raised.
local function was_added(reply)
  if type(reply) ~= 'table' then return true end
  if string.find(reply.err, 'equal or smaller', 1, true) then return false end
  error(reply)
end

-- Adds an entry of three fields to the tail; mark: further fields, or nil. Returns as was_added does.
local function add_entry(tail, id, mark, a, of_a, b, of_b, c, of_c)
  if not mark then return was_added(redis.pcall('XADD', tail, id, a, of_a, b, of_b, c, of_c)) end
  return was_added(redis.pcall('XADD', tail, id, a, of_a, b, of_b, c, of_c, unpack(mark)))
end

local NO_MARK = {}

-- The same for a message with headers.
local function add_headed_entry(tail, id, mark, headers, tag, value, time)
  return was_added(redis.pcall('XADD', tail, id, 'h', headers, 'k', tag, 'v', value, 't', time,
    unpack(mark or NO_MARK)))
end

local function entry_field(entry, name)
  local fields = entry[2]
  for i = 1, #fields, 2 do
    if fields[i] == name then return fields[i + 1] end
  end
  return nil
end

local function offset_of(entry)
  return to_number(string.sub(entry[1], 3))
end

local function newest_entry(K)
  return redis.call('XREVRANGE', K .. ':tail', '+', '-', 'COUNT', 1)[1]
end

local function tail_is_ahead(K, stream)
  local newest = newest_entry(K)
  return newest and offset_of(newest) > stream.last
end

-- Adds a node that is in its place to the index; note_end stores it.
local function index_node(stream, base, last, count, time, blob)
  stream.index, stream.added = stream.index or {}, (stream.added or 0) + #blob
  local n = #stream.index
  stream.index[n + 1] = digits(last)
  stream.index[n + 2] = node_member(base, last, count, time, stream.time, blob)
  stream.sealed = last
end

-- A batch that fills a node goes straight to the nodes when everything before it is there; its entry in the
-- tail wakes blocked readers. Returns false as add_entry does; then nothing is changed.
local function append_packed(K, stream, now, count, time, newest, fit, blob, mark)
  local base, last = stream.last + 1, stream.last + count
  time, newest = time or now, newest or now
  stream.time = math.max(stream.time, newest)
  local id = '0-' .. digits(last)
  if fit and stream.sealed == stream.last then
    -- A node must not overwrite one of a write that stopped half-way.
    if redis.call('HSETNX', K .. ':nodes', base, blob) == 0 then
      if tail_is_ahead(K, stream) then return false end
      redis.call('HSET', K .. ':nodes', base, blob)
    end
    local checked = checked_time(node_crc(blob), last, time, count)
    local done, added = pcall(add_entry, K .. ':tail', id, mark, 'n', count, 't', checked, 'w', newest)
    if not done or not added then redis.pcall('HDEL', K .. ':nodes', base) end
    if not done then error(added) end
    if not added then return false end
    index_node(stream, base, last, count, time, blob)
  else
    local checked = checked_time(node_crc(blob), last, newest, count)
    if not add_entry(K .. ':tail', id, mark, 'n', count, 't', checked, 'd', blob) then return false end
  end
  stream.last = last
  return true
end

-- Stores the end of the stream; from here on all clients see what was appended.
local function note_end(K, stream)
  if not stream.index then
    redis.call('HSET', K, 'last', stream.last, 'time', stream.time)
    return note_known_end(K, stream.last)
  end
  redis.call('ZADD', K .. ':index', unpack(stream.index))
  stream.bytes = stream.bytes + stream.added
  redis.call('HSET', K, 'last', stream.last, 'time', stream.time, 'sealed', stream.sealed,
    'bytes', stream.bytes)
  note_known_end(K, stream.last)
  stream.index, stream.added = nil, nil
  trim_tail(K, stream)
end

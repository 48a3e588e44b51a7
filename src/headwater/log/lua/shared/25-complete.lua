--[[
  Completing what an earlier call left when it stopped half-way. A replacement of nodes is finished
  (17-replace.lua). If a write or a publish stopped, the tail goes beyond `last` (15-append.lua): if its last
  entry is there, the write is whole, and what is missing is stored now; otherwise its entries are dropped, as
  if it had never happened.
]]
-- The server refuses an entry with the id of a deleted one, so the tail is copied without these entries.
local function drop_unfinished(K, stream, entries)
  local bases = {}
  for _, entry in ipairs(entries) do
    if entry_field(entry, 'w') then
      bases[#bases + 1] = digits(offset_of(entry) - tonumber(entry_field(entry, 'n')) + 1)
    end
  end
  if bases[1] then redis.call('HDEL', K .. ':nodes', unpack(bases)) end
  local remade, from = K .. ':remade', '-'
  redis.call('UNLINK', remade)
  while true do
    local kept = redis.call('XRANGE', K .. ':tail', from, '0-' .. digits(stream.last), 'COUNT', 256)
    if #kept == 0 then break end
    for _, entry in ipairs(kept) do redis.call('XADD', remade, entry[1], unpack(entry[2])) end
    from = '(' .. kept[#kept][1]
  end
  if from == '-' then
    redis.call('UNLINK', K .. ':tail')
  else
    redis.call('RENAME', remade, K .. ':tail')
  end
end

local function note_mark(K, entry)
  local words, last = entry_field(entry, 's'), offset_of(entry)
  local producer, publisher = entry_field(entry, 'p'), entry_field(entry, 'q')
  if producer then
    local sequence, first, digest = string.match(words, '^(%d+):(%d+):(%x*)$')
    remember_answer(K, producer, tonumber(sequence), tonumber(first), last, server_ms(), digest)
  elseif publisher then
    redis.call('HSET', K .. ':publishing', publisher, words)
  end
end

-- Completes or drops what was left; returns the stream as it is afterwards.
local function complete_stream(K)
  finish_replace(K, redis.call('HGET', K, 'replacing'))
  local stream = load_stream(K)
  if not tail_is_ahead(K, stream) then return stream end
  stream = open_stream(K)
  local entries = redis.call('XRANGE', K .. ':tail', '(0-' .. digits(stream.last), '+')
  if entry_field(entries[#entries], 'm') then
    drop_unfinished(K, stream, entries)
    return stream
  end
  for _, entry in ipairs(entries) do
    local last, count = offset_of(entry), tonumber(entry_field(entry, 'n') or 1)
    local time, newest = time_of(entry_field(entry, 't') or ''), tonumber(entry_field(entry, 'w'))
    stream.time = math.max(stream.time, newest or time or 0)
    if newest then
      local base = last - count + 1
      index_node(stream, base, last, count, time, redis.call('HGET', K .. ':nodes', digits(base)))
    end
    stream.last = last
    note_mark(K, entry)
  end
  note_end(K, stream)
  return stream
end

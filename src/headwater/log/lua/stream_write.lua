--[[
  hw_stream_write: append one message or a batch, atomically.
  Offsets are dense and assigned here. A repeat of (producer, sequence) changes nothing and gets the
  first reply.

  KEYS   1 the stream
  ARGV   1 producer or ''     2 its sequence and, after a colon, a digest of the content if it has one; or, after ">",
         the sequence that must be the newest one before it, 0 for none
         3 backlog or '': keep at least this many messages, without passing a registered reader
         4 form: 'plain', 'checked', 'headed' or 'packed'
         5.. plain:    tag, value, tag, value, ...
             checked:  tag, value, CRC-32 of the value, begun with that of the tag, begun with the bytes
                       of the tag, ... (see docs/reference/keys.md)
             headed:   tag, value, CRC-32, headers or '', ...; the CRC begins with the bytes of the tag, and of
                       the headers shifted by sixteen bits, and is of the tag, the headers and the value
             packed:   count, first time or '', newest time or '', '1' when fit to be a node, blob, ...
  Reply  { first offset, last offset, messages not sealed yet, 1 when it was a repeat,
           messages in hot nodes (see stream_cooling.lua), created, a space and history (see
           shared/12-history.lua) when a producer wrote, else and for a repeat '' }
         error HW_STALE <newest sequence> when the sequence is older than what is remembered, or the newest one is
         not the one that was named
         error HW_REUSED <first> <last> when the sequence was written with other content
]]
-- How many words each message takes in each form.
local STEPS = { plain = 2, checked = 3, headed = 4 }

-- mark: further fields of the last entry. Returns false when the tail goes beyond `last`.
local function write_packed(K, stream, args, now, mark)
  for i = 5, #args, 5 do
    local extra = MORE
    if i + 5 > #args then extra = mark end
    local fits = append_packed(K, stream, now, tonumber(args[i]), tonumber(args[i + 1]),
      tonumber(args[i + 2]), args[i + 3] == '1', args[i + 4], extra)
    if not fits then return false end
  end
  return true
end

local function write_plain(K, stream, args, now, mark, step)
  stream.time = math.max(stream.time, now)
  local tail, clock, id = K .. ':tail', digits(now), nil
  local time = clock
  for i = 5, #args, step do
    local last = stream.last + 1
    local extra = MORE
    if i + step > #args then extra = mark end
    id = '0-' .. digits(last)
    if step >= 3 then time = clock .. '-' .. digits(checksum(to_number(args[i + 2]), last, now, 1)) end
    local added
    if step == 4 and args[i + 3] ~= '' then
      added = add_headed_entry(tail, id, extra, args[i + 3], args[i], args[i + 1], time)
    else
      added = add_entry(tail, id, extra, 'k', args[i], 'v', args[i + 1], 't', time)
    end
    if not added then return false end
    stream.last = last
  end
  -- Blocked members get the entry from here.
  if id and stream.waiting ~= '' then
    local at = #args - step + 1
    stream.newest = { id, { 'k', args[at], 'v', args[at + 1], 't', time } }
    if step == 4 and args[at + 3] ~= '' then
      stream.newest[2] = { 'h', args[at + 3], 'k', args[at], 'v', args[at + 1], 't', time }
    end
  end
  return true
end

-- The highest offset: a number beyond it is not exact. One call never writes as much as is left after the other.
local LAST_OFFSET, NEARLY_LAST = 9007199254740991, 9007199000000000

-- Returns how many messages a write has.
local function count_of(form, args)
  if form ~= 'packed' then return (#args - 4) / STEPS[form] end
  local count = 0
  for i = 5, #args, 5 do count = count + tonumber(args[i]) end
  return count
end

-- Appends, and stores what was appended; returns the reply, and the stream when there is more to do.
local function write(K, producer, numbered, form, args, now, again)
  local sequence, digest
  if producer ~= '' then
    local after
    sequence, digest, after = sequence_and_digest(numbered)
    local first, last = remembered_answer(K, producer, sequence, digest)
    if first then
      if last > tonumber(redis.call('HGET', K, 'last') or 0) then complete_stream(K) end
      return { first, last, 0, 1, 0, '' }
    end
    if last then return last end
    local newest = after and redis.call('HGET', K .. ':answers', producer) or '0'
    if after and tonumber(newest) ~= after then return redis.error_reply('HW_STALE ' .. newest) end
  end
  local stream = open_stream(K, producer == '' and form ~= 'packed')
  if stream.last > NEARLY_LAST and stream.last + count_of(form, args) > LAST_OFFSET then
    return redis.error_reply('ERR the offsets of the stream are used up; write to another stream')
  end
  local first, mark, history = stream.last + 1, nil, ''
  if producer ~= '' then
    mark = { 'p', producer, 's', digits(sequence) .. ':' .. digits(first) .. ':' .. digest }
  end
  local whole
  if form == 'packed' then
    whole = write_packed(K, stream, args, now, mark)
  else
    whole = write_plain(K, stream, args, now, mark, STEPS[form])
  end
  if not whole then
    -- An earlier call stopped half-way: complete it, and start again after it.
    if again then return redis.error_reply('ERR the tail of the stream goes beyond its end') end
    complete_stream(K)
    return write(K, producer, numbered, form, args, now, true)
  end
  if producer ~= '' then
    remember_answer(K, producer, sequence, first, stream.last, now, digest)
    history = stream.created .. ' ' .. stream.history
  end
  note_end(K, stream)
  local hot = math.max(stream.sealed - stream.cold, 0)
  return { first, stream.last, stream.last - stream.sealed, 0, hot, history }, stream
end

local function keep_backlog(K, stream, backlog)
  local limit = limit_for(K, stream, backlog)
  if limit < stream.first then return end
  local needed = slowest_reader(K, limit)
  evict(K, stream, needed and math.min(limit, needed - 1) or limit)
end

redis.register_function('hw_stream_write', function(keys, args)
  local K, producer, numbered, backlog, form = keys[1], args[1], args[2], args[3], args[4]
  local now = server_ms()
  local reply, stream = write(K, producer, numbered, form, args, now)
  if not stream then return reply end
  serve_all(K, stream, now)
  if backlog ~= '' then afterwards(keep_backlog, K, stream, tonumber(backlog)) end
  return reply
end)

--[[
  hw_stream_complete: complete or drop what a call left when it stopped half-way.
  Every write does so; this is for clients that find the tail beyond the end of the stream and do not write.
  KEYS   1 the stream
  Reply  the last offset
]]
redis.register_function{
  function_name = 'hw_stream_complete',
  callback = function(keys) return complete_stream(keys[1]).last end,
  flags = { 'allow-oom' },
}

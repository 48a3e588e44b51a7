--[[
  hw_stream_write: append one message or a batch, atomically.
  Offsets are dense and assigned here. A repeat of (producer, sequence) changes nothing and gets the
  first reply.

  KEYS   1 the stream
  ARGV   1 producer or ''     2 its sequence
         3 backlog or '': keep at least so many messages, without passing a registered reader
         4 form: 'plain' or 'packed'
         5.. plain:   tag, value, tag, value, ...
             packed:  count, first time or '', newest time or '', '1' when fit to be a node, blob, ...
  Reply  { first offset, last offset, messages not sealed yet, 1 when it was a repeat,
           messages in hot nodes (see stream_cooling.lua) }
         error HW_STALE <newest sequence> when the sequence is older than what is remembered
]]
local function write_packed(K, stream, args, now)
  for i = 5, #args, 5 do
    append_packed(K, stream, now, tonumber(args[i]), tonumber(args[i + 1]), tonumber(args[i + 2]),
      args[i + 3] == '1', args[i + 4])
  end
end

local function write_plain(K, stream, args, now)
  stream.time = math.max(stream.time, now)
  local tail, time, id = K .. ':tail', digits(now), nil
  for i = 5, #args, 2 do
    stream.last = stream.last + 1
    id = '0-' .. digits(stream.last)
    redis.call('XADD', tail, id, 'k', args[i], 'v', args[i + 1], 't', time)
  end
  -- Whoever is blocked gets it from here.
  if id and stream.waiting ~= '' then
    stream.newest = { id, { 'k', args[#args - 1], 'v', args[#args], 't', time } }
  end
end

redis.register_function('hw_stream_write', function(keys, args)
  local K, producer, sequence = keys[1], args[1], tonumber(args[2])
  local backlog, form = args[3], args[4]
  if producer ~= '' then
    local first, last = remembered_answer(K, producer, sequence)
    if first then return { first, last, 0, 1, 0 } end
    if last then return last end
  end
  local stream, now = open_stream(K), server_ms()
  local first = stream.last + 1
  if form == 'plain' then
    write_plain(K, stream, args, now)
  else
    write_packed(K, stream, args, now)
  end
  redis.call('HSET', K, 'last', digits(stream.last), 'time', digits(stream.time))
  if producer ~= '' then remember_answer(K, producer, sequence, first, stream.last, now) end
  serve_all(K, stream, now)
  if backlog ~= '' then
    local limit = limit_for(K, stream, tonumber(backlog))
    if limit >= stream.first then
      local needed = slowest_reader(K)
      if needed then limit = math.min(limit, needed - 1) end
      evict(K, stream, limit)
    end
  end
  return { first, stream.last, stream.last - stream.sealed, 0, math.max(stream.sealed - stream.cold, 0) }
end)

--[[
  hw_group_bury: move expired messages to the dead letters, which are a stream of their own.
  That stream may lie in another slot, so this takes two steps that anyone may repeat: a batch is
  numbered and noted, whoever gets it writes it with (producer, number), and then reports it as written.

  KEYS   1 the stream
  ARGV   1 group   2 number of the batch that was written, or ''   3 its first offset among the dead letters
         4 messages in a batch at most
  Reply  { messages that became dead letters by this call, number of the batch to write now,
           { first, last, attempt, ... } of it ({} when there is none), stream of the dead letters }
         error HW_NO_GROUP

  A message that was acknowledged after its batch was noted is done: its letter lies in the stream
  of the dead letters, but counts for nothing and is never redriven.
  G field "burying": "number first:last:attempt,..."; G:dead zset: score: offset among the dead letters;
  member: "offset:first:last:attempt"; G field "grave": the stream they all lie in
]]
local function add_dead(G, at, first, last, attempt)
  redis.call('ZADD', G .. ':dead', digits(at),
    table.concat({ digits(at), digits(first), digits(last), attempt }, ':'))
end

-- Dead letters were turned off after messages had expired: these are dropped like any other.
local function drop_expired(G)
  redis.call('HDEL', G, 'burying')
  for _, start in ipairs(redis.call('ZRANGE', G .. ':expired', 0, EXPIRE_STEPS - 1)) do
    local range = pending_at(G, start)
    local n = range.last - range.first + 1
    drop_pending(G, range)
    redis.call('HINCRBY', G, 'pending', 0 - n)
    redis.call('HINCRBY', G, 'expired', n)
  end
  return { 0, 0, {}, '' }
end

-- Numbers grow beyond those of any group of this name that was removed: the stream of the dead
-- outlives groups, and remembers what it was sent under which number.
local function next_burial(G)
  local now = redis.call('TIME')
  local number = math.max(
    tonumber(redis.call('HGET', G, 'burials') or 0) + 1, tonumber(now[1]) * 1000000 + tonumber(now[2]))
  redis.call('HSET', G, 'burials', digits(number))
  return digits(number)
end

redis.register_function{
  function_name = 'hw_group_bury',
  callback = function(keys, args)
    local name, written, written_at, most = args[1], args[2], tonumber(args[3]), tonumber(args[4])
    local G = group_key(keys[1], name)
    if not open_group(G) then return no_group() end
    local target = redis.call('HGET', G, 'dead_letters')
    if target == '' then return drop_expired(G) end
    local noted, buried = redis.call('HGET', G, 'burying'), 0
    if noted and written ~= '' and written == string.match(noted, '^%d+') then
      local at = written_at
      for first, last, attempt in string.gmatch(noted, '(%d+):(%d+):(%d+)') do
        first, last = tonumber(first), tonumber(last)
        local parts, taken = cut_pending(G, first, last, true)
        for _, part in ipairs(parts) do
          add_dead(G, at + part.first - first, part.first, part.last, attempt)
        end
        redis.call('HINCRBY', G, 'pending', 0 - taken)
        redis.call('HINCRBY', G, 'buried', taken)
        redis.call('HINCRBY', G, 'expired', taken)
        at, buried = at + last - first + 1, buried + taken
      end
      redis.call('HDEL', G, 'burying')
      noted = nil
    end
    if not noted then
      local parts, room = {}, most
      for _, start in ipairs(redis.call('ZRANGE', G .. ':expired', 0, 255)) do
        local range = pending_at(G, start)
        if room <= 0 then break end
        local last = math.min(range.last, range.first + room - 1)
        room = room - (last - range.first + 1)
        parts[#parts + 1] = table.concat({ start, digits(last), digits(range.attempt) }, ':')
      end
      if #parts == 0 then return { buried, 0, {}, '' } end
      noted = next_burial(G) .. ' ' .. table.concat(parts, ',')
      redis.call('HSET', G, 'burying', noted, 'grave', target)
    end
    local ranges = {}
    for first, last, attempt in string.gmatch(noted, '(%d+):(%d+):(%d+)') do
      local n = #ranges
      ranges[n + 1], ranges[n + 2], ranges[n + 3] = tonumber(first), tonumber(last), tonumber(attempt)
    end
    return { buried, tonumber(string.match(noted, '^%d+')), ranges, target }
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_group_dead: which dead letters are neither redriven nor discarded.
  KEYS   1 the stream
  ARGV   1 group   2 how many ranges
  Reply  { stream of the dead letters or '', { offset in it, first, last, attempt, ... } }
         error HW_NO_GROUP
]]
redis.register_function{
  function_name = 'hw_group_dead',
  callback = function(keys, args)
    local name, most = args[1], tonumber(args[2])
    local G = group_key(keys[1], name)
    if redis.call('EXISTS', G) == 0 then return no_group() end
    local facts = {}
    for _, member in ipairs(redis.call('ZRANGE', G .. ':dead', 0, most - 1)) do
      for number in string.gmatch(member, '%d+') do facts[#facts + 1] = tonumber(number) end
    end
    return { redis.call('HGET', G, 'grave') or '', facts }
  end,
  flags = { 'no-writes' },
}

-- What a seek made new again is handed out by itself; what is pending again is only made due.
local function give_back(G, first, last, now)
  last = math.min(last, tonumber(redis.call('HGET', G, 'next')) - 1)
  if last < first then return end
  local _, taken = cut_pending(G, first, last, true)
  add_pending(G, first, last, 0, now, NEVER)
  redis.call('HINCRBY', G, 'pending', last - first + 1 - taken)
end

--[[
  hw_group_redrive: have dead letters redelivered by the group, at once, with a fresh count of attempts.
  A message that the log no longer holds stays among the dead letters.
  KEYS   1 the stream
  ARGV   1 group   2 how many messages at most   3 offset among the dead letters to go on from, 0 to begin
  Reply  { messages given back, messages left because the log has evicted them,
           offset among the dead letters to go on from or -1 at the end }
         error HW_NO_GROUP
]]
redis.register_function{
  function_name = 'hw_group_redrive',
  callback = function(keys, args)
    local K, name, room, from = keys[1], args[1], tonumber(args[2]), args[3]
    local G, stream, now = group_key(K, name), load_stream(K), server_ms()
    if not open_group(G) then return no_group() end
    local back, gone, place = 0, 0, -1
    local found = redis.call('ZRANGE', G .. ':dead', from, '+inf', 'BYSCORE', 'LIMIT', 0, 1024)
    for i, member in ipairs(found) do
      if room <= 0 then break end
      local at, first, last, attempt = string.match(member, '^(%d+):(%d+):(%d+):(%d+)$')
      at, first, last = tonumber(at), tonumber(first), tonumber(last)
      if i == 1024 then place = at + last - first + 1 end
      if first < stream.first then
        gone = gone + math.min(last, stream.first - 1) - first + 1
      end
      if last >= stream.first then
        redis.call('ZREM', G .. ':dead', member)
        if first < stream.first then
          add_dead(G, at, first, stream.first - 1, attempt)
          at, first = at + stream.first - first, stream.first
        end
        local stop = math.min(last, first + room - 1)
        if stop < last then add_dead(G, at + stop - first + 1, stop + 1, last, attempt) end
        give_back(G, first, stop, now)
        redis.call('HINCRBY', G, 'buried', 0 - (stop - first + 1))
        room, back = room - (stop - first + 1), back + stop - first + 1
      end
    end
    if back > 0 then serve(K, name, stream, now) end
    return { back, gone, place }
  end,
  flags = { 'allow-oom' },
}

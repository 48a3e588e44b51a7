--[[
  hw_queue_page: look at one part of a queue, a page at a time, changing nothing.
  A message that stays where it is while the pages are read is on exactly one of them.

  KEYS   1 the queue
  ARGV   1 part: 'ready', 'later', 'held', 'again', 'dead' or 'aside'   2 level
         3 where to go on, '' to begin   4 messages at most   5 bytes at most
         Neither a run nor a parcel is divided: there may be some more, and some of the first run
         may lie before where to go on.
  Reply  { server's ms, where to go on or '', then
           ready, aside: what lies there
           else: member, score, { { place, entry, deadline of its own or nothing }, ... }, ... }
]]
-- Finds the first place of n, ordered, that lies after something; `is_after` looks at one place.
local function first_after(n, is_after)
  local low, high = 0, n
  while low < high do
    local middle = math.floor((low + high) / 2)
    if is_after(middle) then high = middle else low = middle + 1 end
  end
  return low
end

-- Gives the number of the last message in an element of a list, as digits, or nil when it cannot be
-- read; and how many messages there are.
local function newest_in(element)
  local count, first = read_run(element, 1)
  if count then return digits(first + count - 1), count end
  return string.match(element, '^%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d'), 1
end

-- Says whether what lies at a place of a list, or the next that can be read, was pushed after `at`.
local function is_after(key, place, at)
  local element = redis.call('LINDEX', key, place)
  while element do
    local newest = newest_in(element)
    if newest then return newest > at end
    place = place + 1
    element = redis.call('LINDEX', key, place)
  end
  return true
end

local function page_of_list(queue, level, at, count, bytes)
  local key, step = set_key(queue, 'ready', level), queue.largest > 65536 and 1 or 64
  local start = at == '' and 0
    or first_after(redis.call('LLEN', key), function(place) return is_after(key, place, at) end)
  local found, seen, on = {}, 0, at
  while true do
    local elements = redis.call('LRANGE', key, start, start + math.min(math.max(count - seen, 1), step) - 1)
    if #elements == 0 then return found, '' end
    for _, element in ipairs(elements) do
      -- A page ends where the next can begin: behind something that has a number.
      if (seen >= count or bytes <= 0) and on ~= at then return found, on end
      local newest, messages = newest_in(element)
      found[#found + 1], on = element, newest or on
      start, seen, bytes = start + 1, seen + messages, bytes - #element
    end
  end
end

local function page_of_parcels(K, key, at, count, bytes)
  local score, member = string.match(at, '^(%d+) (.*)$')
  score = tonumber(score)
  local start = at == '' and 0 or first_after(redis.call('ZCARD', key), function(rank)
    local found = redis.call('ZRANGE', key, rank, rank, 'WITHSCORES')
    local other = tonumber(found[2])
    return other > score or (other == score and found[1] > member)
  end)
  local found, seen = {}, 0
  while seen < count and bytes > 0 do
    local parcels = redis.call('ZRANGE', key, start, start + 15, 'WITHSCORES')
    if #parcels == 0 then return found, '' end
    for i = 1, #parcels, 2 do
      if seen >= count or bytes <= 0 then break end
      local parcel, entries, deadlines, left = parse_member(parcels[i]), nil, nil, {}
      if parcel then entries, deadlines = open_record({ key = K }, parcel.number) end
      for place, entry in ipairs(entries or {}) do
        if entry ~= '' then
          left[#left + 1] = { place, entry, deadlines and deadlines[place] }
          bytes = bytes - #entry
        end
      end
      local n = #found
      found[n + 1], found[n + 2], found[n + 3] = parcels[i], parcels[i + 1], left
      at, seen, start = parcels[i + 1] .. ' ' .. parcels[i], seen + math.max(#left, 1), start + 1
    end
  end
  return found, at
end

redis.register_function{
  function_name = 'hw_queue_page',
  callback = function(keys, args)
    local K, part, at, count, bytes = keys[1], args[1], args[3], tonumber(args[4]), tonumber(args[5])
    local found, on
    if part == 'aside' then
      local start = tonumber(at) or 0
      found = redis.call('LRANGE', K .. ':aside', start, start + count - 1)
      on = #found == count and digits(start + count) or ''
    elseif part == 'ready' then
      found, on = page_of_list(load_queue(K), args[2], at, count, bytes)
    else
      found, on = page_of_parcels(K, set_key({ key = K }, part, args[2]), at, count, bytes)
    end
    table.insert(found, 1, on)
    table.insert(found, 1, server_ms())
    return found
  end,
  flags = { 'no-writes' },
}

--[[
  hw_queue_stats: how a queue stands.
  KEYS   1 the queue
  Reply  { server's ms, levels, paused, settings, 1 when it exists, waiters, time of the oldest
           message that could be popped or 0, messages in lists,
           { last, pushed, popped, acked, expired, damaged, held, later, again, dead },
           mark before, mark, { level, set, level, set, ... that have parcels whose time has come } }
]]
local function oldest_of(queue, level)
  local found = {}
  local head = redis.call('LINDEX', set_key(queue, 'ready', level), 0)
  local us = head and (select(2, read_run(head, 1)) or tonumber(string.sub(head, 1, 16)))
  if us then found[1] = math.floor(us / 1000) end
  for _, set in ipairs({ 'held', 'again', 'later' }) do
    local score = tonumber(redis.call('ZRANGE', set_key(queue, set, level), 0, 0, 'WITHSCORES')[2] or nil)
    if score and score <= queue.now then found[#found + 1] = score end
  end
  return #found > 0 and math.min(unpack(found)) or nil
end

redis.register_function{
  function_name = 'hw_queue_stats',
  callback = function(keys)
    local queue = load_queue(keys[1])
    local K, oldest, due = queue.key, nil, {}
    for _, level in ipairs(levels_of(queue)) do
      local age = oldest_of(queue, level)
      if age and (not oldest or age < oldest) then oldest = age end
      for _, set in ipairs({ 'held', 'again', 'later' }) do
        if redis.call('ZCOUNT', set_key(queue, set, level), '-inf', queue.now) > 0 then
          due[#due + 1], due[#due + 2] = level, set
        end
      end
    end
    local counts = {}
    for i = 1, 10 do counts[i] = queue[COUNTS[i]] end
    local marks = redis.call('HMGET', K, 'mark_before', 'mark')
    return {
      queue.now, queue.levels, queue.paused and 1 or 0, queue.settings, queue.new and 0 or 1,
      redis.call('ZCARD', K .. ':waiters'), oldest or 0, count_listed(queue), counts,
      marks[1] or '', marks[2] or '', due,
    }
  end,
  flags = { 'no-writes' },
}

--[[
  hw_queue_due: count the messages of a set whose time has come, a step at a time.
  KEYS   1 the queue
  ARGV   1 level   2 set: 'held', 'again' or 'later'   3 server's ms up to which   4 rank to go on from
  Reply  { messages, of them those that were handed out as often as allowed, rank to go on from or -1 }
]]
redis.register_function{
  function_name = 'hw_queue_due',
  callback = function(keys, args)
    local queue = load_queue(keys[1])
    local tries, start = most_attempts(queue), tonumber(args[4])
    local found = redis.call('ZRANGE', set_key(queue, args[2], args[1]), '-inf', args[3], 'BYSCORE',
      'LIMIT', start, 5000)
    local total, spent, now = 0, 0, tonumber(args[3])
    for _, member in ipairs(found) do
      local parcel = parse_member(member)
      if parcel then
        local count = parcel.count
        if parcel.varied then
          local entries, deadlines = open_record(queue, parcel.number)
          count = 0
          for place = 1, #(entries or {}) do
            if entries[place] ~= '' and (deadlines and deadlines[place] or 0) <= now then count = count + 1 end
          end
        end
        total = total + count
        if args[2] == 'held' and tries > 0 and parcel.attempt >= tries then spent = spent + count end
      end
    end
    return { total, spent, #found == 5000 and start + 5000 or -1 }
  end,
  flags = { 'no-writes' },
}

--[[
  hw_queue_page: get a page of one part of a queue. Changes nothing.
  A message that stays where it is while the pages are read is on exactly one of them.

  KEYS   1 the queue
  ARGV   1 part: 'ready', 'delayed', 'unacked', 'retry', 'dead' or 'damaged'   2 priority
         3 where to continue, '' to begin   4 messages at most   5 bytes at most
         6 'newest': of a part with times, the bundle with the latest time first
         No bundle is divided: there may be a few more messages, and some messages of the first bundle may be
         before the place to continue from.
  Reply  { server's ms, where to continue or '', then
           ready, damaged: the stored texts
           else for each bundle: name, time, ms of its delay after its deadline or -1 when it is given
           up then, texts, deadline of each of them if they differ }
]]
-- Finds by bisection the first of n ordered places that is after something; `is_after` checks one place.
local function first_after(n, is_after)
  local low, high = 0, n
  while low < high do
    local middle = math.floor((low + high) / 2)
    if is_after(middle) then high = middle else low = middle + 1 end
  end
  return low
end

-- Returns the number of the last message in a bundle of a list, or nil when it cannot be read; and
-- how many messages there are.
local function newest_in(text)
  local count, number = read_bundle(text), string.match(text, '^%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d')
  if not count or not number then return nil, 1 end
  return digits(tonumber(number) + count - 1), count
end

-- Returns whether the text at a place of a list, or the next that can be read, was pushed after `at`.
local function is_after(key, place, at)
  local text = redis.call('LINDEX', key, place)
  while text do
    local newest = newest_in(text)
    if newest then return newest > at end
    place = place + 1
    text = redis.call('LINDEX', key, place)
  end
  return true
end

local function page_of_list(queue, priority, at, count, bytes)
  local key, step = set_key(queue, 'ready', priority), queue.largest > 65536 and 1 or 64
  local start = at == '' and 0
    or first_after(redis.call('LLEN', key), function(place) return is_after(key, place, at) end)
  local found, seen, on = {}, 0, at
  while true do
    local texts = redis.call('LRANGE', key, start, start + math.min(math.max(count - seen, 1), step) - 1)
    if #texts == 0 then return found, '' end
    for _, text in ipairs(texts) do
      -- A page ends where the next can begin: after a text that has a number.
      if (seen >= count or bytes <= 0) and on ~= at then return found, on end
      local newest, messages = newest_in(text)
      found[#found + 1], on = text, newest or on
      start, seen, bytes = start + 1, seen + messages, bytes - #text
    end
  end
end

-- Returns members of a sorted set with their scores, by rank from either end.
local function ranked(key, first, last, newest)
  if newest then return redis.call('ZRANGE', key, first, last, 'REV', 'WITHSCORES') end
  return redis.call('ZRANGE', key, first, last, 'WITHSCORES')
end

local function page_of_set(queue, set, priority, at, count, bytes, newest)
  local key, time, name = set_key(queue, set, priority), string.match(at, '^(%d+) (.*)$')
  time = tonumber(time)
  local start = at == '' and 0 or first_after(redis.call('ZCARD', key), function(rank)
    local found = ranked(key, rank, rank, newest)
    local other = tonumber(found[2])
    if other == time then return newest and found[1] < name or not newest and found[1] > name end
    return (other > time) == not newest
  end)
  local found, seen = {}, 0
  while seen < count and bytes > 0 do
    local members = ranked(key, start, start + 15, newest)
    if #members == 0 then return found, '' end
    for i = 1, #members, 2 do
      if seen >= count or bytes <= 0 then break end
      local bundle, n = parse_name(set, members[i]), #found
      if bundle then
        local text = text_of(queue, bundle)
        local texts, deadlines = part_bundles(text)
        local rest = set == 'unacked' and (rest_ms(queue, bundle.attempt, bundle.number) or -1) or 0
        found[n + 1], found[n + 2], found[n + 3] = members[i], members[i + 1], rest
        found[n + 4], found[n + 5] = texts, deadlines or {}
        seen, bytes = seen + bundle.count, bytes - #text
      end
      at, start = members[i + 1] .. ' ' .. members[i], start + 1
    end
  end
  return found, at
end

local function page_of_damaged(queue, at, count, bytes)
  local start, found = tonumber(at) or 0, {}
  while #found < count and bytes > 0 do
    local text = redis.call('LINDEX', queue.key .. ':damaged', start)
    if not text then return found, '' end
    found[#found + 1] = text
    start, bytes = start + 1, bytes - #text
  end
  return found, digits(start)
end

redis.register_function{
  function_name = 'hw_queue_page',
  callback = function(keys, args)
    local queue, part, priority, at = load_queue(keys[1]), args[1], args[2], args[3]
    local count, bytes, newest = tonumber(args[4]), tonumber(args[5]), args[6] == 'newest'
    local found, on
    if part == 'damaged' then
      found, on = page_of_damaged(queue, at, count, bytes)
    elseif part == 'ready' then
      found, on = page_of_list(queue, priority, at, count, bytes)
    else
      found, on = page_of_set(queue, part, priority, at, count, bytes, newest)
    end
    table.insert(found, 1, on)
    table.insert(found, 1, queue.now)
    return found
  end,
  flags = { 'no-writes' },
}

--[[
  hw_queue_stats: get the state of a queue.
  KEYS   1 the queue
  Reply  { name, value, ... }: now (server's ms), exists, paused, priorities ("9,0,"), settings, limits,
         waiting (blocked consumers), oldest (time since which the oldest message could be popped, or
         0), oldest_delayed (when it was pushed or last delivered, or 0), oldest_unacked (when it was
         delivered), oldest_dead (when it was given up): of the first OLDEST_OF bundles by time,
         newest_dead (the latest time at which a dead letter was given up, or 0),
         listed (messages in lists), mark_before, mark; last, pushed, popped, acked, expired,
         damaged, unacked, delayed, retry, dead (as counted: due messages stay where they are);
         due: { priority, set, ... that have bundles whose time has come }; waits: { messages that
         waited up to each of the bounds before they were popped, and longer, then the sum in ms }
]]
-- Returns the time since which the first bundle of a set could be popped, or nil.
local function due_since(queue, set, priority)
  local first = redis.call('ZRANGE', set_key(queue, set, priority), 0, 0, 'WITHSCORES')
  local bundle, time = parse_name(set, first[1] or ''), tonumber(first[2] or nil)
  if bundle and set == 'unacked' then time = time + (rest_ms(queue, bundle.attempt, bundle.number) or math.huge) end
  return bundle and time <= queue.now and time or nil
end

local function oldest_of(queue, priority)
  local head = redis.call('LINDEX', set_key(queue, 'ready', priority), 0)
  local us = head and tonumber(string.sub(head, 1, 16))
  local oldest = us and math.floor(us / 1000) or math.huge
  for _, set in ipairs({ 'unacked', 'retry', 'delayed' }) do
    oldest = math.min(oldest, due_since(queue, set, priority) or math.huge)
  end
  return oldest
end

-- Bundles are ordered by the time at which they are due, and their age is in their names. This many are read,
-- so that the call does not grow with the queue.
local OLDEST_OF = 32

-- Returns when the oldest of the first bundles of a set got its name, of those that are not due yet.
local function named_since(queue, set, priority)
  local names = queue[set] > 0 and redis.call('ZRANGE', set_key(queue, set, priority), '(' .. digits(queue.now), '+inf',
    'BYSCORE', 'LIMIT', 0, OLDEST_OF) or {}
  local oldest = math.huge
  for _, name in ipairs(names) do
    oldest = math.min(oldest, tonumber(string.match(name, '^%d+')) or math.huge)
  end
  return math.floor(oldest / 1000)
end

-- Returns since when the first bundle whose deadline is over has been given up or delayed: it stays where it
-- is until the next pop.
local function lapsed_since(queue, priority)
  if queue.unacked == 0 then return math.huge, math.huge end
  local first = redis.call('ZRANGE', set_key(queue, 'unacked', priority), 0, 0, 'WITHSCORES')
  local bundle, time = parse_name('unacked', first[1] or ''), tonumber(first[2] or nil)
  if not bundle or time > queue.now then return math.huge, math.huge end
  local rest = rest_ms(queue, bundle.attempt, bundle.number)
  if not rest then return time, math.huge end
  return math.huge, time + rest > queue.now and math.floor(tonumber(bundle.number) / 1000) or math.huge
end

local function oldest_by_state(queue)
  local unacked, delayed, dead = math.huge, math.huge, math.huge
  if queue.dead > 0 then
    dead = tonumber(redis.call('ZRANGE', queue.key .. ':dead', 0, 0, 'WITHSCORES')[2] or nil) or dead
  end
  for _, priority in ipairs(priorities_of(queue)) do
    local given_up, resting = lapsed_since(queue, priority)
    dead, unacked = math.min(dead, given_up), math.min(unacked, named_since(queue, 'unacked', priority))
    delayed = math.min(delayed, resting, named_since(queue, 'delayed', priority), named_since(queue, 'retry', priority))
  end
  return delayed, unacked, dead
end

-- Returns a time, or 0 for none.
local function or_none(time)
  return time < math.huge and time or 0
end

function looks.queue(key)
  local queue = load_queue(key)
  local oldest, due = math.huge, {}
  local delayed, unacked, dead = oldest_by_state(queue)
  for _, priority in ipairs(priorities_of(queue)) do
    oldest = math.min(oldest, oldest_of(queue, priority))
    for _, set in ipairs({ 'unacked', 'retry', 'delayed' }) do
      if redis.call('ZCOUNT', set_key(queue, set, priority), '-inf', queue.now) > 0 then
        due[#due + 1], due[#due + 2] = priority, set
      end
    end
  end
  local marks = redis.call('HMGET', queue.key, 'mark_before', 'mark', 'waits')
  local reply = {
    'now', queue.now, 'exists', queue.new and 0 or 1, 'paused', queue.paused and 1 or 0,
    'priorities', queue.priorities, 'settings', queue.settings,
    'limits', redis.call('HGET', queue.key, 'limits') or '',
    'waiting', redis.call('ZCOUNT', queue.key .. ':looks', queue.now - WAITER_GRACE_MS, '+inf'),
    'oldest', or_none(oldest), 'oldest_delayed', or_none(delayed), 'oldest_unacked', or_none(unacked),
    'oldest_dead', or_none(dead),
    'newest_dead', tonumber(redis.call('ZRANGE', queue.key .. ':dead', -1, -1, 'WITHSCORES')[2] or 0),
    'listed', count_listed(queue), 'mark_before', marks[1] or '', 'mark', marks[2] or '', 'due', due,
    'waits', waits.of(marks[3], waits.noted[key]),
  }
  for i = 1, 10 do reply[#reply + 1], reply[#reply + 2] = COUNTS[i], queue[COUNTS[i]] end
  return reply
end

redis.register_function{
  function_name = 'hw_queue_stats',
  callback = function(keys) return looks.queue(keys[1]) end,
  flags = { 'no-writes' },
}

--[[
  hw_queue_due: count the due messages of a set, some in each call.
  KEYS   1 the queue
  ARGV   1 priority   2 set: 'unacked', 'retry' or 'delayed'   3 server's ms up to which
         4 rank to continue from
  Reply  { messages, of them those that are given up, of them those that are delayed again, rank to continue
           from or -1 }
]]
local DUE_STEPS = 500

-- Counts the messages of a bundle whose own time has come, and of them those that are delayed again.
local function count_due(queue, bundle, time, now, rest)
  if not bundle.varied then return bundle.count, time + rest > now and bundle.count or 0 end
  local texts, deadlines = part_bundles(text_of(queue, bundle))
  local due, resting = 0, 0
  for i = 1, #texts do
    local deadline = deadlines and deadlines[i] or time
    if deadline <= now then due = due + 1 end
    if deadline <= now and deadline + rest > now then resting = resting + 1 end
  end
  return due, resting
end

redis.register_function{
  function_name = 'hw_queue_due',
  callback = function(keys, args)
    local queue, priority, set = load_queue(keys[1]), args[1], args[2]
    local now, start = tonumber(args[3]), tonumber(args[4])
    local found = redis.call('ZRANGE', set_key(queue, set, priority), start, start + DUE_STEPS - 1, 'WITHSCORES')
    local total, given_up, resting, steps = 0, 0, 0, DUE_STEPS
    for i = 1, #found, 2 do
      local time = tonumber(found[i + 1])
      if time > now then return { total, given_up, resting, -1 } end
      if steps <= 0 then return { total, given_up, resting, start + (i - 1) / 2 } end
      local bundle, rest = parse_name(set, found[i]), 0
      if bundle then
        if set == 'unacked' then rest = rest_ms(queue, bundle.attempt, bundle.number) end
        local due, rests = count_due(queue, bundle, time, now, rest or 0)
        total, resting = total + due, resting + rests
        if not rest then given_up = given_up + due end
        steps = steps - (bundle.varied and OPEN_STEPS + bundle.count or 1)
      end
    end
    return { total, given_up, resting, #found == 2 * DUE_STEPS and start + DUE_STEPS or -1 }
  end,
  flags = { 'no-writes' },
}

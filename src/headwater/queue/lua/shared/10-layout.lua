--[[
  Where a queue keeps what. K is the queue's key, "hw:q:{<name>}"; every other key of the queue
  begins with K and so lies in the same slot of a cluster.

    K                hash  counts (packed: see COUNTS), levels, paused, settings, marks for rates,
                           and one field w:<waiter> for each blocked consumer
    K:ready:<level>  list  entries and runs, in the order in which they were pushed
    K:later:<level>  zset  parcels that are delayed, by the time at which they come due
    K:held:<level>   zset  parcels that somebody has, by the deadline for their ack
    K:again:<level>  zset  parcels that come again, by the time at which they do
    K:dead           zset  parcels that were given up, by when
    K:parcels        hash  number -> what is in a parcel, packs
    K:aside          list  what could not be read
    K:waiters        zset  who is blocked, by turn
    K:box:<waiter>   list  parcels that are reserved for a blocked consumer
    K:dedupe:<n>:<key>     string, until the window is over: the id that was given for a key
    K:producers K:answers  what producers were answered

  An *entry* is one message and never changes: its number and "m"; or its number, "t" and the time at
  which its life ends (13 digits); then the value. A number has 16 digits: the microsecond of the
  push, moved on where two would be equal. It is the message's id, and tells its age.

  A *run* is some messages of one push in one string, a pack (see 15-packs.lua); it begins with a
  letter, an entry with a digit. A push of a few messages gives entries, one of many gives runs.

  A *parcel* is up to 64 messages of one level that share a time: they were handed out together, or
  become due together. So handing out 50 messages that must be acknowledged costs one record and
  one member of a sorted set, not 50. A member says "number:level:attempt:count", where attempt is
  how often its messages were handed out; the record is packs: runs as they lay in the list, and
  entries, with '' in the place of those that have left. The consumer is sent the same string. A number is given anew with each hand-out: a receipt, which is number, level, attempt,
  count and place, never fits a later one.

  Some messages of a parcel may be given more time than others: then the record has a deadline for
  each, the member ends in ":v", and its score is the earliest deadline.
]]
local PARCEL_MESSAGES = 64
local PARCEL_BYTES = 32768
-- Runs are as long as what consumers ask for, so that most are handed out as they lie: RUN_MESSAGES
-- as long as nobody has asked, and none at all where fewer than RUN_LEAST are taken at a time.
local RUN_MESSAGES = 10
local RUN_LEAST = 10
local RUN_BYTES = 16384
local CALL_BYTES = 4194304
local MARK_MS = 10000
-- Numbers that nearly every call reads and changes; one field, because each lookup costs.
-- last: the newest number given; held, later, again, dead: messages in those sets; largest: bytes of
-- the largest element of a list since the queue was empty; marked: when rates were last marked;
-- generation: of dedupe keys; waited: until when somebody may be blocked; soonest: no deadline of
-- what is held is earlier, so that most calls need look neither for the blocked nor for what is
-- over; bundled: messages in lists beyond the first of each run, so that lengths and this are all;
-- asked: how many messages the last pop asked for.
local COUNTS = {
  'last', 'pushed', 'popped', 'acked', 'expired', 'damaged', 'held', 'later', 'again', 'dead',
  'largest', 'marked', 'generation', 'waited', 'soonest', 'bundled', 'asked',
}
local COUNTS_FORM = '>ddddddddddddddddd'

-- What is known of a queue; one that was never pushed to is an empty one.
local function load_queue(K)
  local found, us = redis.call('HMGET', K, 'counts', 'levels', 'paused', 'settings'), server_us()
  local queue = {
    key = K, us = us, now = math.floor(us / 1000), before = found[1] or '', new = not found[1],
    levels = found[2] or '', levels_before = found[2] or '', paused = found[3] == '1',
    settings = found[4] or '', last = 0, pushed = 0, popped = 0, acked = 0, expired = 0, damaged = 0,
    held = 0, later = 0, again = 0, dead = 0, largest = 0, marked = 0, generation = 0,
    -- Who waits for the first push of all is not noted anywhere.
    waited = math.huge, soonest = math.huge, bundled = 0, asked = 0,
  }
  if found[1] then
    queue.last, queue.pushed, queue.popped, queue.acked, queue.expired, queue.damaged, queue.held,
      queue.later, queue.again, queue.dead, queue.largest, queue.marked, queue.generation,
      queue.waited, queue.soonest, queue.bundled, queue.asked =
      struct.unpack(COUNTS_FORM, found[1])
  end
  return queue
end

-- Rates are taken between marks, which are set as the queue is used.
local function set_mark(queue)
  redis.call('HSET', queue.key, 'mark_before', redis.call('HGET', queue.key, 'mark') or '',
    'mark', table.concat({ digits(queue.now), digits(queue.pushed), digits(queue.popped), digits(queue.acked) }, ':'))
  queue.marked = queue.now
end

local function save_queue(queue)
  if queue.last == 0 then return end
  if queue.now >= queue.marked + MARK_MS then set_mark(queue) end
  local counts = struct.pack(COUNTS_FORM, queue.last, queue.pushed, queue.popped, queue.acked,
    queue.expired, queue.damaged, queue.held, queue.later, queue.again, queue.dead, queue.largest,
    queue.marked, queue.generation, queue.waited, queue.soonest, queue.bundled, queue.asked)
  if queue.levels ~= queue.levels_before then
    redis.call('HSET', queue.key, 'counts', counts, 'levels', queue.levels)
  elseif counts ~= queue.before then
    redis.call('HSET', queue.key, 'counts', counts)
  end
end

-- How many messages make a run, so that few pops have to divide one.
local function run_length(queue)
  if queue.asked == 0 then return RUN_MESSAGES end
  return math.ceil(queue.asked / math.ceil(queue.asked / PARCEL_MESSAGES))
end

-- Gives so many numbers in a row; returns the first. Numbers grow with time and are never equal.
local function next_numbers(queue, count)
  local first = math.max(queue.last + 1, queue.us)
  queue.last = first + count - 1
  return first
end

-- Levels in use are kept as "9,0,-3,": the highest first.
local function levels_of(queue)
  local found = {}
  for level in string.gmatch(queue.levels, '[^,]+') do found[#found + 1] = level end
  return found
end

local function use_level(queue, level)
  if string.find(',' .. queue.levels, ',' .. level .. ',', 1, true) then return end
  local found = levels_of(queue)
  found[#found + 1] = level
  table.sort(found, function(a, b) return tonumber(a) > tonumber(b) end)
  queue.levels = table.concat(found, ',') .. ','
end

-- A level that holds nothing is not looked at until it is pushed to again.
local function drop_empty_level(queue, level)
  local K = queue.key
  if redis.call('EXISTS', K .. ':ready:' .. level, K .. ':later:' .. level, K .. ':held:' .. level,
      K .. ':again:' .. level) > 0 then return end
  local kept = {}
  for _, each in ipairs(levels_of(queue)) do
    if each ~= level then kept[#kept + 1] = each .. ',' end
  end
  queue.levels = table.concat(kept)
end

-- How often a message may be handed out (0: no limit), and how long it rests after each time.
local function most_attempts(queue)
  return tonumber(string.match(queue.settings, '^(%d+)') or 0)
end

local function rest_ms(queue, attempt)
  local manner, first, longest = string.match(queue.settings, '^%d+:(%a+):(%d+):(%d+)$')
  if not manner or manner == 'none' then return 0 end
  if manner == 'fixed' then return tonumber(first) end
  return math.min(tonumber(first) * 2 ^ (math.min(math.max(attempt, 1), 50) - 1), tonumber(longest))
end

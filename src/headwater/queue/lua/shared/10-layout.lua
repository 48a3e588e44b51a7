--[[
  The keys of a queue. There are two ideas:

  A *message* is a number and a value. The number is its id and never changes: 16 digits, the
  microsecond of the push, increased where two would be equal. So it shows the age, too.

  A *bundle* is 1 to 64 messages in one string. Bundles are moved whole wherever that is possible, so
  that 50 messages cost about as much as one. A bundle that waits only for a consumer is in a list. One
  that waits for a time is in a hash, and its name is in a sorted set by that time:

    K:ready:0    list   [ 1 message ] [ 1 message ] [ 50 messages ] [ 50 messages ] ...
                                          |
                                          |  pop(50, ack_ms)
                                          v
    K:unacked:0  zset   name of a bundle -> its deadline      1733000000000123:0:1:50 -> 1733000030000
    K:bundles    hash   number of a bundle -> its string      1733000000000123 -> [ 50 messages ]
                                          |
                                          |  nack, or the deadline is over      ack: both are removed
                                          v
    K:retry:0    zset   name of a bundle -> when it is redelivered

  A name is "number:priority:attempt:count". The number is new with each delivery, attempt is how
  often the messages were delivered, count is how many are left. A receipt is the name of the bundle
  and the number of a message, so it never matches another delivery. If some messages of a bundle are
  extended, it has a deadline for each message, its name ends in ":v", and its time is the earliest
  deadline. The format of a bundle's string is in 15-bundles.lua.

  K is the queue's key, "hw:q:{<name>}"; every other key begins with it and so is in the same slot
  of a cluster.

    K                     hash  format, counts (packed: see COUNTS), priorities, paused, settings, limits,
                                bucket, marks for rates, how long messages waited
    K:ready:<priority>    list  bundles, in the order in which they were pushed
    K:delayed:<priority>  zset  bundles that were pushed with a delay, by the time at which it is over
    K:unacked:<priority>  zset  bundles that consumers have, by the deadline for their ack
    K:retry:<priority>    zset  bundles that are redelivered, by the time of the redelivery
    K:dead                zset  bundles that were given up, by the time of that
    K:bundles             hash  number of a bundle that waits for a time -> its string
    K:damaged             list  what could not be read
    K:failing K:causes          errors of failed messages: see 35-failures.lua
    K:waiters             zset  blocked consumers, by turn
    K:looks               zset  the same, by the time at which they look again
    K:box:<waiter>        list  names of bundles that are reserved for a blocked consumer
    K:dedupe:<n>:<key>          string, until the window is over: the number that a key was given
    K:keys:<n>            zset  dedupe keys of generation n, by the time at which their window is over
    K:producers K:answers       replies to producers
]]
local BUNDLE_MESSAGES = 64
local BUNDLE_BYTES = 32768
-- A bundle has as many messages of one push as consumers ask for, so that most bundles are delivered as they
-- are: READY_MESSAGES until the first pop; and one where fewer than READY_LEAST are taken at a time.
local READY_MESSAGES = 10
local READY_LEAST = 10
local READY_BYTES = 16384
local CALL_BYTES = 4194304
local MARK_MS = 10000
-- Numbers that nearly every call reads and changes; one field, because each look-up costs. last: the newest
-- number given; unacked, delayed, retry, dead: messages in those sets; largest: bytes of the largest bundle
-- in a list since the queue was empty; marked: when rates were last marked; generation: of dedupe keys;
-- waited: until when a consumer may be blocked; soonest: no deadline is earlier, so that most calls need not
-- look for blocked consumers or passed deadlines; bundled: messages in lists beyond the first of each bundle,
-- so that the lengths of the lists plus this are all; asked: how many messages the last pop asked for.
local COUNTS = {
  'last', 'pushed', 'popped', 'acked', 'expired', 'damaged', 'unacked', 'delayed', 'retry', 'dead',
  'largest', 'marked', 'generation', 'waited', 'soonest', 'bundled', 'asked',
}
local COUNTS_FORM = '>ddddddddddddddddd'

-- The counts of a queue that was never pushed to. A consumer that waits for the first push is not recorded in
-- them.
local no_counts

local function counts_of_none()
  no_counts = no_counts or
    struct.pack(COUNTS_FORM, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, math.huge, math.huge, 0, 0)
  return no_counts
end

-- Limits, for queues that have any: 45-limits.lua.
local quota = {}

-- Loads a queue; one that was never pushed to is empty.
local function load_queue(K)
  local found, us = redis.call('HMGET', K, 'counts', 'priorities', 'paused', 'settings', 'format', 'limits', 'bucket'), server_us()
  check_format(found[5])
  local last, pushed, popped, acked, expired, damaged, unacked, delayed, retry, dead, largest, marked,
    generation, waited, soonest, bundled, asked = struct.unpack(COUNTS_FORM, found[1] or counts_of_none())
  local priorities = found[2] or ''
  return {
    key = K, us = us, now = math.floor(us / 1000), before = found[1] or '', new = not found[1],
    priorities = priorities, priorities_before = priorities, paused = found[3] == '1',
    settings = found[4] or '', last = last, pushed = pushed, popped = popped, acked = acked,
    expired = expired, damaged = damaged, unacked = unacked, delayed = delayed, retry = retry,
    dead = dead, largest = largest, marked = marked, generation = generation, waited = waited,
    soonest = soonest, bundled = bundled, asked = asked, limits = limits.of(found[6]),
    bucket = to_number(found[7] or 0),
  }
end

-- Returns the saved form of a queue's counts, one string.
local function pack_counts(queue)
  return struct.pack(COUNTS_FORM, queue.last, queue.pushed, queue.popped, queue.acked,
    queue.expired, queue.damaged, queue.unacked, queue.delayed, queue.retry, queue.dead,
    queue.largest, queue.marked, queue.generation, queue.waited, queue.soonest, queue.bundled,
    queue.asked)
end

-- Returns how many messages of a push make a bundle, so that few pops have to divide one.
local function ready_length(queue)
  if queue.asked == 0 then return READY_MESSAGES end
  return math.ceil(queue.asked / math.ceil(queue.asked / BUNDLE_MESSAGES))
end

-- Takes a number of consecutive message numbers; returns the first. They grow with time and are never equal.
local function next_numbers(queue, count)
  local first = math.max(queue.last + 1, queue.us)
  queue.last = first + count - 1
  return first
end

-- ── Keys and priorities ───────────────────────────────────────────────────────────────────────

-- Returns the key of a list or sorted set: 'ready', 'delayed', 'unacked', 'retry' or 'dead'.
local function set_key(queue, set, priority)
  return queue.key .. ':' .. set .. (set == 'dead' and '' or ':' .. priority)
end

-- Priorities in use are kept as "9,0,-3,": the highest first.
local function priorities_of(queue)
  local found = {}
  for priority in string.gmatch(queue.priorities, '[^,]+') do found[#found + 1] = priority end
  return found
end

local function use_priority(queue, priority)
  if string.find(',' .. queue.priorities, ',' .. priority .. ',', 1, true) then return end
  local found = priorities_of(queue)
  found[#found + 1] = priority
  table.sort(found, function(a, b) return tonumber(a) > tonumber(b) end)
  queue.priorities = table.concat(found, ',') .. ','
end

-- An empty priority is not looked at until it is pushed to again.
local function drop_empty_priority(queue, priority)
  local K = queue.key
  if redis.call('EXISTS', K .. ':ready:' .. priority, K .. ':delayed:' .. priority,
      K .. ':unacked:' .. priority, K .. ':retry:' .. priority) > 0 then return end
  local kept = {}
  for _, each in ipairs(priorities_of(queue)) do
    if each ~= priority then kept[#kept + 1] = each .. ',' end
  end
  queue.priorities = table.concat(kept)
end

-- Counts the messages in lists. Empty lists have none, whatever the counts of damaged bundles were.
local function count_listed(queue)
  local total = 0
  for _, priority in ipairs(priorities_of(queue)) do
    total = total + redis.call('LLEN', set_key(queue, 'ready', priority))
  end
  return total > 0 and total + queue.bundled or 0
end

-- ── Settings ──────────────────────────────────────────────────────────────────────────────────

-- Returns the delay in ms of messages that were delivered `attempt` times and not acknowledged; or nil when
-- they are given up. An exponential delay is cut to between half and all of it, so that messages that failed
-- together do not return together. How much is cut follows from the `number` of the bundle or message, always
-- the same: multiples of the golden ratio are evenly distributed, and numbers of one moment are consecutive.
local function rest_ms(queue, attempt, number)
  local most, manner, first, longest = string.match(queue.settings, '^(%d+):(%a+):(%d+):(%d+)$')
  if not most then return 0 end
  if tonumber(most) > 0 and attempt >= tonumber(most) then return nil end
  if manner == 'none' then return 0 end
  if manner == 'fixed' then return tonumber(first) end
  local whole = math.min(tonumber(first) * 2 ^ (math.min(math.max(attempt, 1), 50) - 1), tonumber(longest))
  return whole - math.floor(whole / 2 * (tonumber(number) % 1e6 * 0.61803398875 % 1))
end

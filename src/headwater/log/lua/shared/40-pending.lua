--[[
  Pending messages of a group: delivered, not yet acknowledged, kept as ranges.

    G:pending  zset  score: start offset; member: "start:end:attempt:expire"
    G:due      zset  score: when the range must be looked at again; member: start
    G:expired  zset  score and member: start of a range that waits for the dead letters

  A range is found by offset or by time in O(log n), whatever the order of deadlines. `attempt` is
  how often it was delivered; `expire` is 0 for never. Ranges never overlap.

  G field due: no range is due earlier; 0 or missing when that is not known. If it is in the future, a delivery
  of new messages need not look for due ones.

  G field handed: ranges that were put into boxes and are not booked yet, "waiter:time:first:last:due:expire "
  for each, in the order of offsets. The call that wakes a member leaves its range there, which costs
  nothing beyond what it writes anyway; the next call that looks at pending messages books it.

  A call may stop between any two of its changes, because a right was revoked or a key is damaged. So each
  call first reads and plans, and then changes in one order, by replace_ranges and save_group: deadlines of the
  ranges to be removed, these ranges, the ranges to be added, their deadlines, and finally all fields of G at
  once. G:pending alone defines what is pending. A range without a deadline is due now, and a deadline without
  a range is dropped by the next call that finds it.

  G field torn: the offset from which on ranges may lack a deadline; the next call adds it.
  G field unbooked: "start:end:attempt:expire " of ranges that a call could not add after it had removed
  those that they replace; the next call adds them. It counts only with torn.
]]
local NEVER = 0
-- The deadline of a message that waits for others of its tag (41-lanes.lua).
local PARKED = 9000000000000000
-- How many ranges, found or not, one call looks at; a caller that asks for more gets the place to continue
-- from.
local STEP_RANGES = 256

-- Messages by tag, for groups that keep order or have limits per tag: 41-lanes.lua.
local lanes = {}
-- Limits, for groups that have any: 52-limits.lua.
local flights = {}

local function parse_pending(member)
  local first, last, attempt, expire = string.match(member, '^(%d+):(%d+):(%d+):(%d+)$')
  return {
    member = member, start = first, first = to_number(first), last = to_number(last),
    attempt = to_number(attempt), expire = to_number(expire),
  }
end

local function size_of(range)
  return range.last - range.first + 1
end

-- Returns a part of a range, which has the member of the range that it was cut from.
local function part_of(range, first, last)
  return {
    first = first, last = last, attempt = range.attempt, expire = range.expire, due = range.due,
    waits = range.waits, member = range.member,
  }
end

local function pending_at(G, start)
  local found = redis.call('ZRANGE', G .. ':pending', start, start, 'BYSCORE', 'LIMIT', 0, 1)
  return found[1] and parse_pending(found[1])
end

-- ── Fields of a group ────────────────────────────────────────────────────────────────────────────

-- Changed fields, as field, value, field, value, ...; the table is reused for the next group, because growing
-- a table is slow.
local spare = {}

-- Sets a field, which save_group writes; if a field is set twice, the last value counts.
local function change(group, field, value)
  group[field] = value
  local words, n = group.words, group.changed
  if not words then
    words, spare = spare or {}, nil
    group.words = words
  end
  words[n + 1], words[n + 2] = field, value
  group.changed = n + 2
end

-- Runs a step after the caller's own work is done: its failure must not look like a failure of the caller.
local function afterwards(work, ...)
  local done, fault, more = pcall(work, ...)
  if done then return fault, more end
  redis.log(redis.LOG_WARNING, 'headwater: ' .. tostring(type(fault) == 'table' and fault.err or fault))
  return nil
end

local function save_group(G, group)
  if group.lanes then afterwards(lanes.flush, G, group) end
  local words, n = group.words, group.changed
  if n == 0 then return end
  group.words, group.changed = nil, 0
  set_fields(G, words, n)
  spare = words
end

-- Loads fields that are not loaded with every call, before anything is changed.
local function load_counts(G, group)
  local f = redis.call('HMGET', G, 'missed', 'expired', 'buried', 'gaps')
  group.missed, group.expired, group.buried = tonumber(f[1] or 0), tonumber(f[2] or 0), tonumber(f[3] or 0)
  group.gaps = f[4] or ''
end

-- Messages that a reader will never get are counted, and the latest such ranges are kept.
local function record_gap(group, first, last)
  change(group, 'missed', group.missed + last - first + 1)
  local gaps = group.gaps .. digits(first) .. '-' .. digits(last) .. ' '
  local _, n = string.gsub(gaps, ' ', '')
  if n > 16 then gaps = string.gsub(gaps, '^%S+ ', '') end
  change(group, 'gaps', gaps)
end

-- ── Changing ranges ──────────────────────────────────────────────────────────────────────────────

local function note_due(group, due)
  if group.pending == 0 then
    change(group, 'due', due)
  elseif group.due > due then
    change(group, 'due', due)
  end
end

-- Removes ranges; the ranges that replace them keep their deadlines. Returns how many messages.
local function remove_ranges(G, group, old, new)
  local members, dues, waiting, comes, gone = {}, {}, {}, nil, 0
  if new[1] then
    comes = {}
    for _, range in ipairs(new) do comes[range.first] = true end
  end
  for i, range in ipairs(old) do
    members[i] = range.member
    gone = gone + size_of(range)
    if range.waits then
      waiting[#waiting + 1] = range.start
    -- A parked range must not stay parked because its new deadline could not be set.
    elseif not comes or not comes[range.first] or range.due == PARKED then
      dues[#dues + 1] = range.start
    end
  end
  local removed = dues[1] and redis.pcall('ZREM', G .. ':due', unpack(dues))
  local fault = dues[1] and refused(removed)
  -- Where it was not checked what they wait for, ranges without a deadline wait for the dead letters.
  if not fault and dues[1] and removed < #dues then
    for _, start in ipairs(dues) do waiting[#waiting + 1] = start end
  end
  fault = fault or waiting[1] and refused(redis.pcall('ZREM', G .. ':expired', unpack(waiting)))
    or refused(redis.pcall('ZREM', G .. ':pending', unpack(members)))
  if fault then
    change(group, 'torn', 1)
    group.lanes = nil
    save_group(G, group)
    error(fault)
  end
  return gone
end

local function by_first(a, b)
  return a.first < b.first
end

local function sorted(ranges)
  local copy = {}
  for i, range in ipairs(ranges) do copy[i] = range end
  table.sort(copy, by_first)
  return copy
end

-- Returns the offsets that are in some ranges and not in others, as a list of { first, last }.
local function difference(ranges, others)
  local spans, kept, place = {}, sorted(others), 1
  for _, range in ipairs(sorted(ranges)) do
    local at = range.first
    while kept[place] and kept[place].last < at do place = place + 1 end
    local i = place
    while kept[i] and kept[i].first <= range.last do
      if kept[i].first > at then spans[#spans + 1] = { at, kept[i].first - 1 } end
      at, i = math.max(at, kept[i].last + 1), i + 1
    end
    if at <= range.last then spans[#spans + 1] = { at, range.last } end
  end
  return spans
end

-- Adds a range that was never delivered before, and its deadline.
local function add_range(G, group, first, last, due, expire)
  local start = digits(first)
  local member = start .. ':' .. digits(last) .. ':1:' .. (expire == NEVER and '0' or digits(expire))
  add_member(G .. ':pending', start, member)
  note_due(group, due)
  change(group, 'pending', group.pending + last - first + 1)
  if refused(redis.pcall('ZADD', G .. ':due', due, start)) then change(group, 'torn', 1) end
end

-- Records ranges that cannot be added now, for the next call; words: start, member, start, member, ...
local function note_unbooked(G, group, words, pending)
  local text = redis.call('HGET', G, 'unbooked') or ''
  for i = 2, #words, 2 do text = text .. words[i] .. ' ' end
  change(group, 'unbooked', text)
  change(group, 'torn', 1)
  change(group, 'pending', pending)
  group.lanes = nil
  save_group(G, group)
end

-- Replaces ranges by others; either list may be empty. When it raises, only deadlines have changed, which the
-- next call restores; or the new ranges are recorded, and the next call adds them. The caller saves the
-- group. old: with their members; new: with `due`, or with `waits` when they wait for the dead letters.
local function replace_ranges(G, group, old, new)
  local pending, landed = group.pending, nil
  if group.limits and old[1] then landed = difference(old, new) end
  if group.noted then lanes.replaced(G, group, old, new) end
  if old[1] then pending = pending - remove_ranges(G, group, old, new) end
  if new[1] then
    local members, dues, waiting, soonest = {}, {}, {}, math.huge
    for _, range in ipairs(new) do
      local start, n = digits(range.first), #members
      members[n + 1] = start
      members[n + 2] = table.concat(
        { start, digits(range.last), digits(range.attempt), digits(range.expire) }, ':')
      pending = pending + size_of(range)
      if range.waits then
        waiting[#waiting + 1], waiting[#waiting + 2] = start, start
      else
        local due = range.expire == NEVER and range.due or math.min(range.due, range.expire)
        if range.due == PARKED then due = PARKED end
        dues[#dues + 1], dues[#dues + 2] = digits(due), start
        soonest = math.min(soonest, due)
      end
    end
    if dues[1] then note_due(group, soonest) end
    local added, fault = pcall(add_members, G .. ':pending', members)
    if not added then
      if old[1] then note_unbooked(G, group, members, pending) end
      error(fault)
    end
    if dues[1] and refused(redis.pcall('ZADD', G .. ':due', unpack(dues)))
      or waiting[1] and refused(redis.pcall('ZADD', G .. ':expired', unpack(waiting))) then
      change(group, 'torn', 1)
    end
  end
  if pending ~= group.pending then change(group, 'pending', pending) end
  if landed then flights.land(G, group, landed) end
end

-- Gives ranges another deadline; words: due, start, ...
local function set_deadlines(G, group, words)
  for i = 1, #words, 2 do note_due(group, tonumber(words[i])) end
  redis.call('ZADD', G .. ':due', unpack(words))
end

-- Loads the deadlines of ranges, and which of them wait for the dead letters.
local function load_deadlines(G, ranges)
  local starts = {}
  for i, range in ipairs(ranges) do starts[i] = range.start end
  for i, due in ipairs(redis.call('ZMSCORE', G .. ':due', unpack(starts))) do
    ranges[i].due = tonumber(due or 0)
    ranges[i].waits = not due and redis.call('ZSCORE', G .. ':expired', starts[i]) and true
  end
end

-- Returns the ranges that touch first..last, `room` at most, and where to continue when there are more.
-- ending: these offsets end, so deadlines are only needed for a range that reaches beyond them.
local function find_ranges(G, first, last, room, ending)
  local found = {}
  local more = redis.call('ZRANGE', G .. ':pending', first, last, 'BYSCORE', 'LIMIT', 0, room)
  for i, member in ipairs(more) do found[i] = parse_pending(member) end
  -- Ranges never overlap: if one begins here, no earlier one reaches here.
  if not found[1] or found[1].first > first then
    local before = redis.call('ZRANGE', G .. ':pending', '(' .. digits(first), '-inf', 'BYSCORE',
      'REV', 'LIMIT', 0, 1)
    local range = before[1] and parse_pending(before[1])
    if range and range.last >= first then table.insert(found, 1, range) end
  end
  if not found[1] then return found end
  local final = found[#found].last
  if not ending or found[1].first < first or final > last then load_deadlines(G, found) end
  return found, #more == room and final < last and final + 1
end

-- Cuts the offsets in args out of the pending ranges; args are first, last, first, last, ... from a place on.
-- Returns the ranges to remove, what is left of them, the parts in between (none when they are `ending`), and
-- the offset to continue from or -1. They ascend, so an offset may be in what the one before it left. budget: how
-- many messages are cut out at most; nil for any number.
local function plan_cuts(G, args, from, ending, budget)
  -- Offsets that do not end need another deadline, which doubles the work.
  local old, rest, parts, room = {}, {}, {}, ending and STEP_RANGES or STEP_RANGES / 2
  local done, left, lowest = 0, nil, 0
  budget = budget or math.huge
  for i = from, #args, 2 do
    local first, last = to_number(args[i]), to_number(args[i + 1])
    if first < lowest then error({ err = 'ERR ranges of offsets must ascend' }) end
    lowest, first = first, math.max(first, done + 1)
    if room <= 0 or budget <= 0 then return old, rest, parts, first end
    local ranges, place = {}, nil
    local at, again = first, nil
    if left and first <= left.last and first <= last then
      again, at = table.remove(rest), left.last + 1
      ranges[1] = again
    end
    if at <= last then
      local found
      found, place = find_ranges(G, at, last, room, ending)
      -- A look-up takes longer than a range that it finds.
      room = room - math.max(#found, 1) - 1
      for _, range in ipairs(found) do ranges[#ranges + 1] = range end
    end
    if ranges[1] then left = nil end
    for _, range in ipairs(ranges) do
      local low, high = math.max(range.first, first), math.min(range.last, last)
      if budget <= 0 then
        -- If the one before it was cut, the rest of that is next.
        place = left and left.first or low
        break
      end
      if range ~= again then old[#old + 1] = range end
      if high - low + 1 > budget then
        high = low + budget - 1
        place = high + 1
        if not range.due and not range.waits then load_deadlines(G, { range }) end
      end
      budget = budget - (high - low + 1)
      if range.first < low then rest[#rest + 1] = part_of(range, range.first, low - 1) end
      if not ending then parts[#parts + 1] = part_of(range, low, high) end
      if high < range.last then
        left = part_of(range, high + 1, range.last)
        rest[#rest + 1] = left
      end
    end
    if place then return old, rest, parts, place end
    done = math.max(done, last)
  end
  return old, rest, parts, -1
end

-- Ends the pending messages among the offsets in args. Returns how many messages they were, and the offset to
-- continue from or -1.
local function end_ranges(G, group, args, from)
  local before = group.pending
  local old, rest, _, going_on = plan_cuts(G, args, from, true, lanes.budget(G, group))
  if old[1] then replace_ranges(G, group, old, rest) end
  return before - group.pending, going_on
end

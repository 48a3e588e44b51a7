--[[
  Order by tag: in a group that keeps it, a message is delivered when the earlier messages of its tag are done
  or buried; until then it is *parked*. Tags are packed in nodes, where the server does not see them, so clients
  note them before messages are delivered (42-note-tags.lua). A member that has everything that is pending, and
  orders it itself, gets new messages without noted tags; the next client notes the tags of those first.

    G field ordered   1 when the group keeps order
    G field unnoted   from here on up to `next`, messages were delivered whose tags are not noted; 0 for none
    G:due          a parked range has the deadline PARKED
    G:before hash  offset -> the previous message of its tag, if that was pending when it was noted
    G:after  hash  the same, the other way
    G:tails  zset  tag -> the last message of it that was noted; a tag is a digest of 16 hexadecimal digits

  Two tags with the same digest count as one: the messages of both wait for each other.

  The notes of an offset never change, and G:pending alone defines what is pending. If the neighbour of a message
  is not pending, the neighbour's neighbour is checked. Notes are written before their ranges are added, and
  dropped after these are removed. Notes that a call leaves when it stops in between are harmless: they are
  overwritten, or dropped with their offset. No message is delivered while the one before it is pending,
  whatever the deadlines are: a range that lost its deadline is due, and is parked again if it must wait.
]]
-- A block of its own: Lua allows 200 local names in the enclosing function.
do

-- How many messages one call delivers, ends or notes, where it handles each of them.
tag_order.most = 500
-- How many messages one read checks, some of which may have to wait.
tag_order.checks = 1000
-- How many messages of one tag are due together when the one before them is done.
local TOGETHER = 16
-- How many messages may be pending: no tags are noted beyond that, so that readers do not read ahead of a
-- failing tag without limit. A lower max_pending of the group takes precedence.
tag_order.ahead = 20000

-- How many ranges are read at once; beyond them each look-up is a call.
local VIEWED = 64

-- Returns the first pending ranges, in which offsets are looked up without a call each.
function tag_order.view(G)
  local members = redis.call('ZRANGE', G .. ':pending', 0, VIEWED - 1)
  local view = { key = G .. ':pending', whole = #members < VIEWED }
  for i, member in ipairs(members) do view[i] = parse_pending(member) end
  view.oldest = view[1] and view[1].first or math.huge
  return view
end

-- Returns the pending range that holds an offset, or nil.
local function range_at(view, offset)
  if offset < view.oldest then return nil end
  local low, high = 1, #view
  if not view.whole and offset > view[high].last then
    local found = redis.call('ZRANGE', view.key, digits(offset), '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 1)
    local range = parse_pending(found[1])
    return range.last >= offset and range or nil
  end
  while low < high do
    local middle = math.ceil((low + high) / 2)
    if view[middle].first <= offset then low = middle else high = middle - 1 end
  end
  return view[low].last >= offset and view[low] or nil
end

function tag_order.is_pending(view, offset)
  return range_at(view, offset) ~= nil
end

-- Follows a tag from an offset on, by the notes in a hash, to the first message that is pending. Returns it
-- and its range, or nil; messages in `ending` count as done. passed: collects those that are not pending, as
-- text.
local function first_pending(view, notes, offset, ending, passed)
  while offset do
    offset = tonumber(offset)
    local range = not (ending and ending[offset]) and range_at(view, offset)
    if range then return offset, range end
    if passed then passed[#passed + 1] = digits(offset) end
    -- Nothing is pending before the oldest.
    if offset < view.oldest and string.sub(notes, -6) == 'before' then return nil end
    offset = redis.call('HGET', notes, digits(offset))
  end
  return nil
end

-- Returns the last message of a tag that is pending, or nil; tail: the last that was noted, as stored. from:
-- notes from here on are of a call that stopped.
function tag_order.last_pending(G, view, tail, from)
  while tail and tonumber(tail) >= from do tail = redis.call('HGET', G .. ':before', tail) end
  return first_pending(view, G .. ':before', tail)
end

-- ── Delivering ──────────────────────────────────────────────────────────────────────────────────

-- Adds offsets to the set of those that a reader has and orders itself.
function tag_order.own(owned, first, last)
  for offset = first, last do owned[offset] = true end
end

-- Returns such a set of ranges.
function tag_order.set_of(ranges)
  local owned = {}
  for _, range in ipairs(ranges) do tag_order.own(owned, range[1], range[2]) end
  return owned
end

-- Parses the offsets that a reader has, "first-last first-last ...", as a list of { first, last }.
function tag_order.owned(text)
  local ranges = {}
  for first, last in string.gmatch(text, '(%d+)-(%d+)') do ranges[#ranges + 1] = { to_number(first), to_number(last) } end
  return ranges
end

-- Returns whether a reader has everything that is pending, by the ranges that it has, which ascend.
function tag_order.has_all(G, group, owned)
  if group.pending == 0 then return true end
  if not owned[1] then return false end
  local members = redis.call('ZRANGE', G .. ':pending', 0, tag_order.most)
  if #members > tag_order.most then return false end
  local place = 1
  for _, member in ipairs(members) do
    local first, last = string.match(member, '^(%d+):(%d+)')
    first, last = to_number(first), to_number(last)
    while owned[place] and owned[place][2] < first do place = place + 1 end
    if not owned[place] or owned[place][1] > first or owned[place][2] < last then return false end
  end
  return true
end

-- Records in the group that new messages are delivered to a reader that has everything that is pending,
-- without noted tags.
function tag_order.leave_unnoted(G, group)
  if group.pending == 0 then
    -- No message waits for another: remaining notes are of dead letters that were redriven.
    redis.pcall('UNLINK', G .. ':before', G .. ':after', G .. ':tails')
    change(group, 'unnoted', group.next)
  elseif group.unnoted == 0 then
    change(group, 'unnoted', group.next)
  end
end

-- Checks whether messages of a range up to an offset must wait: an earlier message of their tag is pending,
-- and is not with the same reader. Returns nil when none must; otherwise the parts of the range, of which
-- those that must wait are parked.
function tag_order.part(G, range, upto, owned)
  local offsets, blocked, any, view = {}, {}, false, tag_order.view(G)
  for offset = range.first, upto do offsets[#offsets + 1] = digits(offset) end
  for i, before in ipairs(redis.call('HMGET', G .. ':before', unpack(offsets))) do
    local pred = tonumber(before or nil)
    if pred and pred >= range.first then
      if blocked[pred] then blocked[range.first + i - 1] = true end
    elseif pred then
      pred = first_pending(view, G .. ':before', before)
      if pred and not owned[pred] then
        blocked[range.first + i - 1], any = true, true
      end
    end
  end
  if not any then return nil end
  local parts, part = {}, nil
  for offset = range.first, upto do
    local due = blocked[offset] and PARKED or range.due
    if part and part.due == due then
      part.last = offset
    else
      part = part_of(range, offset, offset)
      part.due = due
      parts[#parts + 1] = part
    end
  end
  if upto < range.last then parts[#parts + 1] = part_of(range, upto + 1, range.last) end
  return parts
end

-- Returns the first offset whose tag is not noted, of those that are pending or were not delivered.
function tag_order.first_unnoted(G, stream, group)
  if group.unnoted == 0 then return group.next end
  local first = math.max(group.unnoted, stream.first, tag_order.oldest(G, group.next))
  return math.min(first, group.next)
end

-- Returns the first offset whose tag has to be noted before a reader gets more, or 0 when there is
-- nothing more, or no room for it.
function tag_order.unknown(G, stream, group)
  -- Below 0 the group is paused.
  if not group.noted or group.sole or group.max_pending < 0 then return 0 end
  if group.next > stream.last and not group.held_back then return 0 end
  local most = group.max_pending > 0 and math.min(group.max_pending, tag_order.ahead) or tag_order.ahead
  return (group.pending < most or group.held_back) and tag_order.first_unnoted(G, stream, group) or 0
end

-- ── Ending ───────────────────────────────────────────────────────────────────────────────────────

-- Returns whether any message may follow another; otherwise ended messages need not be looked up.
function tag_order.has_notes(G)
  return redis.call('EXISTS', G .. ':after') == 1
end

-- Returns the first offsets of a list of ranges, first, last, ... from a place on, as many as one call ends;
-- where that list begins; and the offset to continue from, or -1.
function tag_order.first_of(args, from)
  local some, room = {}, tag_order.most
  for i = from, #args, 2 do
    local first, last = to_number(args[i]), to_number(args[i + 1])
    if room <= 0 then return some, 1, first end
    local stop = math.min(last, first + room - 1)
    some[#some + 1], some[#some + 2] = digits(first), digits(stop)
    room = room - (stop - first + 1)
    if stop < last then return some, 1, stop + 1 end
  end
  return some, 1, -1
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

-- Returns the offsets that are in old ranges and not in new ones, as a list of { first, last }.
function tag_order.ended_of(old, new)
  local ended, kept, place = {}, sorted(new), 1
  for _, range in ipairs(sorted(old)) do
    local at = range.first
    while kept[place] and kept[place].last < at do place = place + 1 end
    local i = place
    while kept[i] and kept[i].first <= range.last do
      if kept[i].first > at then ended[#ended + 1] = { at, kept[i].first - 1 } end
      at, i = math.max(at, kept[i].last + 1), i + 1
    end
    if at <= range.last then ended[#ended + 1] = { at, range.last } end
  end
  return ended
end

-- Cuts offsets, which ascend, out of a parked range, so that they are due; adds its parts to a list.
local function unpark(range, offsets, now, parts)
  local at, due = range.first, nil
  for _, offset in ipairs(offsets) do
    if offset > at then parts[#parts + 1] = part_of(range, at, offset - 1) end
    if due and due.last == offset - 1 then
      due.last = offset
    else
      due = part_of(range, offset, offset)
      due.due = now
      parts[#parts + 1] = due
    end
    at = offset + 1
  end
  if at <= range.last then parts[#parts + 1] = part_of(range, at, range.last) end
end

-- Returns offsets as text and as a set.
local function offsets_of(ranges)
  local offsets, set = {}, {}
  for _, range in ipairs(ranges) do
    for offset = range[1], range[2] do
      offsets[#offsets + 1], set[offset] = digits(offset), true
    end
  end
  return offsets, set
end

-- Drops the notes of messages that are done, and those that name them as predecessors: a redriven message has
-- lost its place. If that fails, the notes do no harm.
function tag_order.forget(G, done)
  if done[1] then
    redis.pcall('HDEL', G .. ':before', unpack(done))
    redis.pcall('HDEL', G .. ':after', unpack(done))
  end
  if done.freed[1] then redis.pcall('HDEL', G .. ':before', unpack(done.freed)) end
end

-- Finds the messages that follow those that end: offsets by the start of their range, and these ranges. The
-- third value has offsets whose notes can be dropped; `freed` in it are those that now wait for no other.
local function followers(G, offsets, ending)
  local found, ranges, seen, done, waiting, view = {}, {}, {}, { freed = {} }, {}, tag_order.view(G)
  local before, room = redis.call('HMGET', G .. ':before', unpack(offsets)), 2 * tag_order.most
  for i, after in ipairs(redis.call('HMGET', G .. ':after', unpack(offsets))) do
    -- A message that ends before its turn stays as a link between its neighbours.
    local pred, waits = tonumber(before[i] or nil), nil
    if pred and ending[pred] then
      waits = waiting[pred]
    elseif pred then
      waits = first_pending(view, G .. ':before', pred, ending)
    end
    waiting[tonumber(offsets[i])] = waits
    if not waits and (before[i] or after) then done[#done + 1] = offsets[i] end
    local offset, range = nil, nil
    -- The successor of a message that ends with another is found by that one.
    if after and not waits and not ending[tonumber(after)] then offset, range = first_pending(view, G .. ':after', after, ending, done) end
    if offset then table.insert(done.freed, digits(offset)) end
    local most = TOGETHER
    while offset and not seen[offset] and most > 0 and room > 0 do
      seen[offset], most, room = true, most - 1, room - 1
      if not found[range.start] then found[range.start], ranges[#ranges + 1] = {}, range end
      table.insert(found[range.start], offset)
      -- A reader that gets the first also gets those after it, if it has room for them.
      local next_one = redis.call('HGET', G .. ':after', digits(offset))
      offset, range = first_pending(view, G .. ':after', next_one, ending)
    end
  end
  return found, ranges, done
end

-- Messages end: the next ones of their tags become due in the same step. Returns the ranges to remove and to
-- add, including these, and the offsets to forget.
function tag_order.move_up(G, old, new)
  local offsets, ending = offsets_of(tag_order.ended_of(old, new))
  if not offsets[1] then return old, new, nil end
  local found, ranges, done = followers(G, offsets, ending)
  if not ranges[1] then return old, new, done end
  local going, goes, comes, now, others = {}, {}, {}, server_ms(), {}
  for i, range in ipairs(old) do goes[i], going[range.member] = range, true end
  local inside = {}
  for _, range in ipairs(ranges) do
    table.sort(found[range.start])
    if going[range.member] then
      for _, offset in ipairs(found[range.start]) do inside[#inside + 1] = offset end
    else
      others[#others + 1] = range
    end
  end
  table.sort(inside)
  for _, range in ipairs(new) do
    local own = {}
    for _, offset in ipairs(range.due == PARKED and inside or {}) do
      if range.first <= offset and offset <= range.last then own[#own + 1] = offset end
    end
    unpark(range, own, now, comes)
  end
  if others[1] then load_deadlines(G, others) end
  for _, range in ipairs(others) do
    if range.due == PARKED then
      goes[#goes + 1] = range
      unpark(range, found[range.start], now, comes)
    end
  end
  return goes, comes, done
end

end

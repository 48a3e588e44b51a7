--[[
  Lanes: the messages of a group by tag, for order by tag and for limits per tag.

  Tags are packed in nodes, where the server does not see them, so clients note them before messages are
  delivered. A message with a noted tag is *active*, or it is *parked* in the lane of its tag: pending, in a range
  of its own, with the deadline PARKED. Every active message has a deadline at which a read looks at it. The read
  delivers it, or parks it because of another active message of its tag.

    G field ordered   1 when the group keeps the order of each tag
    G field unnoted   pending messages from here on up to `next` are not noted yet; 0 for none
    G field draining  1 when neither order nor limits per tag are asked for any more, but lanes are not empty
    G:untagged zset   score: first; member: "first:last", of other pending messages that are not noted, because
                      they became pending again
    G:tags    zset    score: a multiple of 512; member: "score:", then 8 bytes for each of the next 512 offsets: the
                      digest of its tag; zeros for none. What was noted once stays true
    G:keys    hash    tag -> "*" if its lane may hold messages, then "offset:time " for each active message: in flight
                      until `time`; returned, and due at -time; or, when it is 0, to be delivered as soon as a limit
                      allows
    G:lanes   zset    scores are 0; member: tag, then the offset in 16 digits, of each parked message
    G:buckets zset    tag -> when its token bucket is full again, in us; none when it is full

  Three rules keep lanes from stalling. A message is parked only behind another active one. When a message of a tag
  ends or lands, the first ones of its lane become active, as many as the rules allow (`refill`); a reader that
  gets one of them also gets those behind it, if it may (`followers`). And a read that
  finds nothing checks a few lanes (`look_after`), in case a call stopped before it had done this.

  G:pending alone defines what is pending, and a deadline other than PARKED what is not parked. Everything here
  may lag behind that when a call stops half-way: a message is entered into its lane before it is parked; before
  one is taken out of its lane its deadline is checked; and before a message keeps another one back, it is checked
  that it is pending.

  Two tags with the same digest count as one.
]]
-- A block of its own: Lua allows 200 local names in the enclosing function.
do

-- How many messages one call notes, delivers or ends, where it handles each of them.
lanes.most = 500
-- How many messages one read checks, some of which may have to wait.
lanes.checks = 1000
-- How many messages may be pending: no tags are noted beyond that, so that readers do not read ahead of a
-- failing tag without limit. A lower max_pending of the group takes precedence.
lanes.ahead = 20000
-- How long a message that waits for a token is left alone at most; limits may change meanwhile.
local LOOK_MS = 30000
-- How many messages of one tag become active at once, and of all tags beyond the first of each.
local TOGETHER, ROOM = 500, 1000
-- How many messages behind one that is delivered are looked up at once.
local FOLLOWERS = 32
-- How many lanes a read that found nothing checks.
local SAMPLE = 8
local CHUNK = 512
-- How many chunks of tags are kept without a look at whether they are still needed.
local CHUNKS = 256
local NONE, HOLE = '\0\0\0\0\0\0\0\0', '\255\255\255\255\255\255\255\255'

-- Returns whether there are limits per tag.
function lanes.limited(group)
  local terms = group.limits
  return terms and (terms.most_of_key or terms.rate_of_key) and true or false
end

-- Returns whether messages are delivered only after clients have noted their tags.
function lanes.noted(group)
  return group.ordered or lanes.limited(group) or group.draining
end

-- Returns how many messages one call ends or moves, if tags are noted; nil for any number.
function lanes.budget(G, group)
  return group.noted and redis.call('EXISTS', G .. ':tags') == 1 and lanes.most or nil
end

-- Returns what a call has read of tags, and will write: states by tag, chunks of tags, members of lanes.
local function book_of(group)
  if not group.lanes then
    group.lanes = { states = {}, chunks = {}, freed = {}, dirty = {}, dues = {}, room = ROOM }
  end
  return group.lanes
end

-- ── Tags and states ──────────────────────────────────────────────────────────────────────────────

local function chunk_at(G, book, base)
  local text = book.chunks[base]
  if text == nil then
    local found = redis.call('ZRANGE', G .. ':tags', base, base, 'BYSCORE', 'LIMIT', 0, 1)[1]
    text = found and string.match(found, '^%d+:(.*)$') or false
    book.chunks[base] = text
  end
  return text
end

-- Returns the tag of an offset; nil when it has none or is not noted.
local function tag_at(G, book, offset)
  local base = offset - offset % CHUNK
  local text = chunk_at(G, book, base)
  if not text then return nil end
  local at = (offset - base) * 8
  local tag = string.sub(text, at + 1, at + 8)
  return #tag == 8 and tag ~= NONE and tag or nil
end

local function parse_state(tag, text)
  local state = { tag = tag, lane = false, active = {} }
  if text then
    state.lane = string.sub(text, 1, 1) == '*'
    for offset, time in string.gmatch(text, '(%d+):(%-?%d+) ') do
      state.active[to_number(offset)] = to_number(time)
    end
  end
  return state
end

-- Loads the states of tags by as few commands as possible; tags: a list, in which some may stand twice.
local function load_states(G, book, tags)
  local missing = {}
  for _, tag in ipairs(tags) do
    if not book.states[tag] then missing[#missing + 1], book.states[tag] = tag, true end
  end
  for from = 1, #missing, lanes.most do
    local last = math.min(from + lanes.most - 1, #missing)
    for i, text in ipairs(redis.call('HMGET', G .. ':keys', unpack(missing, from, last))) do
      local tag = missing[from + i - 1]
      book.states[tag] = parse_state(tag, text)
    end
  end
end

-- Calls back with each offset of spans, { first, last }, that has a tag, and with the state of that.
local function each_state(G, group, spans, visit)
  local book, offsets, tags = book_of(group), {}, {}
  for _, span in ipairs(spans) do
    for offset = span[1], span[2] do
      local tag = tag_at(G, book, offset)
      if tag then
        local n = #offsets + 1
        offsets[n], tags[n] = offset, tag
      end
    end
  end
  load_states(G, book, tags)
  for i, offset in ipairs(offsets) do visit(offset, book.states[tags[i]], book) end
end

-- The state of a tag changes: it is written, and its lane looked at, when the call saves the group.
local function touch(book, state)
  if not state.dirty then
    state.dirty = true
    book.dirty[#book.dirty + 1] = state
  end
end

local function lane_member(tag, offset)
  local text = digits(offset)
  return tag .. string.rep('0', 16 - #text) .. text
end

-- Returns the first offsets in the lane of a tag; after: only those behind this one.
local function first_parked(G, tag, count, after)
  local low = after and '(' .. lane_member(tag, after) or '[' .. tag .. '0'
  local offsets = redis.call('ZRANGE', G .. ':lanes', low, '(' .. tag .. ':', 'BYLEX', 'LIMIT', 0, count)
  for i, member in ipairs(offsets) do offsets[i] = to_number(string.sub(member, 9)) end
  return offsets
end

-- Returns the deadline of a pending message; 0 when it waits to be buried, nil when it is not pending.
local function deadline_of(G, offset)
  local range = find_ranges(G, offset, offset, 1)[1]
  return range and (range.due or 0)
end

-- Returns whether an active message is really there; what a call that stopped has left is
-- corrected.
local function is_there(G, group, state, offset)
  if not state.seen then state.seen = {} end
  if state.seen[offset] == nil then
    local due = deadline_of(G, offset)
    state.seen[offset] = due ~= nil
    local book = book_of(group)
    book.corrected = book.corrected or not due or due == PARKED
    if not due then
      state.active[offset] = nil
      touch(book, state)
    elseif due == PARKED then
      local now = server_ms()
      note_due(group, now)
      redis.call('ZADD', G .. ':due', now, digits(offset))
    end
  end
  return state.seen[offset]
end

-- ── Noting ───────────────────────────────────────────────────────────────────────────────────────

-- Returns the first pending offset, or the one given.
local function oldest_pending(G, otherwise)
  local oldest = redis.call('ZRANGE', G .. ':pending', 0, 0, 'WITHSCORES')[2]
  return oldest and tonumber(oldest) or otherwise
end

-- Returns whether a member has the messages of a pending range.
local function in_flight(range, now)
  return range.attempt > 0 and range.due and range.due > now and range.due ~= PARKED
end

-- Returns the first of some ranges that a member has; nil for none.
local function first_in_flight(ranges, now)
  for _, range in ipairs(ranges) do
    if in_flight(range, now) then return range end
  end
end

-- Returns the first offset whose tag is not noted, of those that are pending or were not delivered. The tag of
-- a message that was evicted meanwhile is not known any more: nothing is delivered after it as long as a member
-- has it.
function lanes.first_unnoted(G, stream, group, now)
  local first = group.next
  if group.unnoted > 0 and group.unnoted < group.next then
    local from, gone = group.unnoted, nil
    if from < stream.first then
      gone = first_in_flight(find_ranges(G, from, stream.first - 1, lanes.most), now or server_ms())
      if gone then
        group.barred = true
        return math.max(gone.first, from)
      end
      from = stream.first
    end
    local range = from < group.next and find_ranges(G, from, group.next - 1, 1)[1]
    if range then first = math.max(range.first, from) end
  end
  while true do
    local stray = redis.call('ZRANGE', G .. ':untagged', 0, 0)[1]
    local low, high = string.match(stray or '', '^(%d+):(%d+)$')
    if not low then return first end
    if to_number(high) >= stream.first then return math.min(first, math.max(to_number(low), stream.first)) end
    redis.call('ZREM', G .. ':untagged', stray)
  end
end

-- Returns the first offset whose tag has to be noted before a reader gets more, or 0 when there is
-- nothing more, or no room for it.
function lanes.unknown(G, stream, group)
  -- Below 0 the group is paused.
  if not group.noted or group.sole or group.barred or group.max_pending < 0 then return 0 end
  if group.next > stream.last and not group.held_back then return 0 end
  local most = group.max_pending > 0 and math.min(group.max_pending, lanes.ahead) or lanes.ahead
  if group.pending >= most and not group.held_back then return 0 end
  local first = lanes.first_unnoted(G, stream, group)
  return group.barred and 0 or first
end

-- Returns the last offset, up to one given, before the first message that was compacted away before its tag was
-- noted, while a member has it: nothing is delivered after it until it is settled or due again.
local function before_unknown(G, book, ranges, blob, looked, last, now)
  for _, range in ipairs(ranges) do
    if in_flight(range, now) then
      for offset = math.max(range.first, looked), math.min(range.last, last) do
        local at = (offset - looked) * 8
        if string.sub(blob, at + 1, at + 8) == HOLE and not tag_at(G, book, offset) then return offset - 1 end
      end
    end
  end
  return last
end

-- From now on tags are noted; those of pending messages are noted first.
function lanes.start(G, group)
  if group.pending > 0 then change(group, 'unnoted', oldest_pending(G, group.next)) end
end

-- Messages became pending again, and are noted before they are delivered.
local function note_again(G, spans)
  local words = {}
  for _, span in ipairs(spans) do
    words[#words + 1], words[#words + 2] = span[1], digits(span[1]) .. ':' .. digits(span[2])
  end
  for from = 1, #words, 2 * lanes.most do
    redis.call('ZADD', G .. ':untagged', unpack(words, from, math.min(from + 2 * lanes.most - 1, #words)))
  end
end

-- Forgets that messages up to an offset were not noted.
local function forget_untagged(G, last)
  local strays = redis.call('ZRANGE', G .. ':untagged', '-inf', last, 'BYSCORE', 'LIMIT', 0, lanes.most)
  for _, stray in ipairs(strays) do
    local high = to_number(string.match(stray, '%d+$'))
    redis.call('ZREM', G .. ':untagged', stray)
    if high > last then redis.call('ZADD', G .. ':untagged', last + 1, digits(last + 1) .. ':' .. digits(high)) end
  end
end

-- Stores the tags of offsets; blob: 8 bytes for each from `looked` on.
local function write_tags(G, book, looked, blob, from, last)
  local base = from - from % CHUNK
  while base <= last do
    local first, final = math.max(from, base), math.min(last, base + CHUNK - 1)
    local text = chunk_at(G, book, base) or string.rep(NONE, CHUNK)
    local part = string.sub(blob, (first - looked) * 8 + 1, (final - looked + 1) * 8)
    if string.find(part, HOLE, 1, true) then
      local tags = {}
      for offset = first, final do
        local at = (offset - first) * 8
        local tag = string.sub(part, at + 1, at + 8)
        -- A message that was compacted away after it was noted may still be with a member.
        if tag == HOLE then tag = string.sub(text, (offset - base) * 8 + 1, (offset - base) * 8 + 8) end
        tags[#tags + 1] = tag
      end
      part = table.concat(tags)
    end
    text = string.sub(text, 1, (first - base) * 8) .. part .. string.sub(text, (final - base + 1) * 8 + 1)
    redis.call('ZREMRANGEBYSCORE', G .. ':tags', base, base)
    redis.call('ZADD', G .. ':tags', base, digits(base) .. ':' .. text)
    book.chunks[base] = text
    base = base + CHUNK
  end
end

-- Drops tags of which no message is pending: all before the oldest, and a few of many others.
local function drop_tags(G, last)
  local oldest = oldest_pending(G, last)
  redis.pcall('ZREMRANGEBYSCORE', G .. ':tags', '-inf', '(' .. digits(oldest - oldest % CHUNK))
  local count = redis.call('ZCARD', G .. ':tags')
  if count <= CHUNKS then return end
  local from = server_us() % count
  for _, member in ipairs(redis.call('ZRANGE', G .. ':tags', from, from + SAMPLE - 1)) do
    local base = to_number(string.match(member, '^%d+'))
    if base + CHUNK - 1 < last and not find_ranges(G, base, base + CHUNK - 1, 1)[1] then
      redis.pcall('ZREM', G .. ':tags', member)
    end
  end
end

-- Notes the tags of messages. args, from a place on: `created` as read, the first and the last offset that were
-- looked at, and 8 bytes for each of them. If several readers note the same messages, one succeeds, and what
-- the others sent is ignored.
function lanes.note(G, group, stream, args, place, now)
  local created, looked, last, blob = args[place], tonumber(args[place + 1]), tonumber(args[place + 2]), args[place + 3]
  if stream.created ~= created then return end
  if #blob ~= 8 * (last - looked + 1) then error({ err = 'ERR eight bytes are needed for each offset' }) end
  local from = lanes.first_unnoted(G, stream, group, now)
  if group.barred then return end
  last = math.min(last, from + lanes.most - 1)
  if looked > from or last < from then return end
  local book, ranges, range, known = book_of(group), {}, nil, {}
  -- Those that were delivered before they were noted, or became pending again.
  if from < group.next then
    known = find_ranges(G, from, math.min(last, group.next - 1), lanes.most)
    last = before_unknown(G, book, known, blob, looked, last, now)
    if last < from then
      group.barred = true
      return
    end
  end
  write_tags(G, book, looked, blob, from, last)
  for _, each in ipairs(known) do
    if each.first <= last then
      if each.due ~= PARKED then
        local time = each.due and each.due > now and (each.attempt > 0 and each.due or -each.due) or 0
        local low, high = math.max(each.first, from), math.min(each.last, last)
        each_state(G, group, { { low, high } }, function(offset, state)
          if not state.active[offset] then
            state.active[offset] = time
            touch(book, state)
          end
        end)
      end
    end
  end
  for offset = math.max(from, group.next), last do
    local at = (offset - looked) * 8
    if string.sub(blob, at + 1, at + 8) == HOLE then
      range = nil
    elseif range then
      range.last = offset
    else
      range = { first = offset, last = offset, attempt = 0, due = now, expire = NEVER }
      ranges[#ranges + 1] = range
    end
  end
  for _, each in ipairs(ranges) do
    each_state(G, group, { { each.first, each.last } }, function(offset, state)
      state.active[offset] = 0
      touch(book, state)
    end)
  end
  if last >= group.next then
    -- Notes of a call that stopped before it could move `next`.
    local left = find_ranges(G, group.next, last, STEP_RANGES)
    group.noting = true
    if ranges[1] or left[1] then replace_ranges(G, group, left, ranges) end
    group.noting = nil
  end
  if group.unnoted > 0 and group.unnoted <= last then
    change(group, 'unnoted', last + 1 < group.next and last + 1 or 0)
  end
  if last >= group.next then change(group, 'next', last + 1) end
  save_group(G, group)
  afterwards(forget_untagged, G, last)
  afterwards(drop_tags, G, last)
end

-- ── Readers that order messages themselves ──────────────────────────────────────────────────────

-- Parses the offsets that a reader has, "first-last first-last ..." in ascending order, as a list of { first, last }.
function lanes.owned(text)
  local ranges = {}
  for first, last in string.gmatch(text, '(%d+)-(%d+)') do ranges[#ranges + 1] = { to_number(first), to_number(last) } end
  return ranges
end

-- Returns whether an offset is in such a list.
local function has(owned, offset)
  local low, high = 1, #owned
  while low <= high do
    local middle = math.floor((low + high) / 2)
    if offset < owned[middle][1] then
      high = middle - 1
    elseif offset > owned[middle][2] then
      low = middle + 1
    else
      return true
    end
  end
  return false
end

-- Returns whether a reader has everything that is pending, by the ranges that it has, which ascend. Then it gets
-- new messages without noted tags.
function lanes.has_all(G, group, owned)
  if group.pending == 0 then return true end
  if not owned[1] then return false end
  local members = redis.call('ZRANGE', G .. ':pending', 0, lanes.most)
  if #members > lanes.most then return false end
  local place = 1
  for _, member in ipairs(members) do
    local first, last = string.match(member, '^(%d+):(%d+)')
    first, last = to_number(first), to_number(last)
    while owned[place] and owned[place][2] < first do place = place + 1 end
    if not owned[place] or owned[place][1] > first or owned[place][2] < last then return false end
  end
  return true
end

-- Records that new messages are delivered to such a reader.
function lanes.leave_unnoted(G, group)
  if group.pending == 0 then
    redis.pcall('UNLINK', G .. ':tags', G .. ':keys', G .. ':lanes', G .. ':untagged')
    group.lanes = nil
    change(group, 'unnoted', group.next)
  elseif group.unnoted == 0 then
    change(group, 'unnoted', group.next)
  end
end

-- ── Delivering ───────────────────────────────────────────────────────────────────────────────────

-- Returns when the bucket of a tag is full again.
local function bucket_of(G, rate, tag, us)
  local stored = tonumber(redis.call('ZSCORE', G .. ':buckets', tag) or 0)
  local full = limits.full_at(rate, stored, us)
  if full < stored then redis.call('ZADD', G .. ':buckets', full, tag) end
  return full
end

-- Prepares a state for judging: which of its active messages the reader does not have, and how many are in flight.
local function prepare(G, group, plan, state, now, us)
  if state.plan == plan then return end
  state.plan, state.waiting, state.place, state.flying, state.foreign = plan, {}, 1, 0, {}
  state.barrier = nil
  for offset, time in pairs(state.active) do
    if time > now then
      state.flying = state.flying + 1
      if not has(plan.owned, offset) then state.foreign[#state.foreign + 1] = offset end
    elseif not has(plan.owned, offset) then
      state.waiting[#state.waiting + 1] = offset
    end
  end
  table.sort(state.waiting)
  local rate = group.limits and group.limits.rate_of_key
  if rate then
    state.full = bucket_of(G, rate, state.tag, us)
    state.tokens = limits.tokens(rate, state.full, us)
  end
  state.first_parked = group.ordered and state.lane and first_parked(G, state.tag, 1)[1] or nil
end

-- Returns whether somebody else has a message of a tag.
local function foreign_flies(G, group, state)
  while state.foreign[1] do
    if is_there(G, group, state, state.foreign[#state.foreign]) then return true end
    table.remove(state.foreign)
    state.flying = state.flying - 1
  end
  return false
end

-- Returns the first active message of a tag, before an offset, that the reader does not have; nil for none.
local function foreign_before(G, group, state, offset)
  while true do
    local first = state.waiting[state.place]
    if not first or first >= offset then return nil end
    if state.active[first] and is_there(G, group, state, first) then return first end
    state.place = state.place + 1
  end
end

-- Messages behind one that is delivered or dropped may follow it in the same read.
local function moves(plan, state)
  if state.moved ~= plan then
    state.moved = plan
    plan.movers[#plan.movers + 1] = state
  end
end

-- Returns the deadline of a message that a read looks at: nil when it may be delivered.
local function judge(G, group, plan, state, offset, now, us)
  prepare(G, group, plan, state, now, us)
  local terms = group.limits or {}
  if group.ordered then
    if foreign_flies(G, group, state) or foreign_before(G, group, state, offset) then return PARKED end
    -- One that was redriven comes first.
    if state.first_parked and state.first_parked < offset then return PARKED end
  end
  if terms.most_of_key and state.flying >= terms.most_of_key then
    -- If the last one is there, so are the others, as far as it is worth a look.
    if state.flying > #state.foreign or foreign_flies(G, group, state) and state.flying >= terms.most_of_key then
      return PARKED
    end
  end
  if terms.rate_of_key and state.tokens <= 0 then
    if state.waits_for_token then return PARKED end
    state.waits_for_token = true
    local wait = limits.wait(terms.rate_of_key, state.full, us, 1) / 1000
    return now + math.max(math.ceil(math.min(wait, LOOK_MS)), 1)
  end
  state.flying = state.flying + 1
  if state.tokens then state.tokens = state.tokens - 1 end
  moves(plan, state)
  -- The reader has it now.
  if state.waiting[state.place] == offset then state.place = state.place + 1 end
  return nil
end

-- Returns the parts of a range, up to an offset, that may and may not be delivered; nil when all of it may.
function lanes.parts(G, group, plan, range, upto, now)
  local parts, part, kept, us = {}, nil, false, server_us()
  local verdicts = {}
  each_state(G, group, { { range.first, upto } }, function(offset, state, book)
    local due = judge(G, group, plan, state, offset, now, us)
    if not due then return end
    verdicts[offset], kept = due, true
    touch(book, state)
    if due == PARKED then
      state.active[offset], state.lane = nil, true
      state.first_parked = math.min(state.first_parked or offset, offset)
      state.barrier = math.min(state.barrier or offset, offset)
      plan.parked[#plan.parked + 1] = lane_member(state.tag, offset)
    else
      state.active[offset] = 0
    end
  end)
  if not kept then return nil end
  for offset = range.first, upto do
    local due = verdicts[offset] or range.due
    if part and part.due == due and due ~= PARKED then
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

-- Messages that a read looks at are dropped, because they were evicted or have expired.
function lanes.drop(G, group, plan, first, last)
  lanes.ended(G, group, { { first, last } })
  each_state(G, group, { { first, last } }, function(_, state) moves(plan, state) end)
end

-- Returns the next offsets of the lane of a tag, a few at a time, for a read that got the message before them.
function lanes.followers(G, group, plan, state, now)
  if not state.lane then return {} end
  prepare(G, group, plan, state, now, server_us())
  local offsets, starts = first_parked(G, state.tag, FOLLOWERS, state.pulled), {}
  if not offsets[1] then return {} end
  state.pulled, state.first_parked = offsets[#offsets], nil
  for i, offset in ipairs(offsets) do starts[i] = digits(offset) end
  local parked, book = {}, book_of(group)
  for i, due in ipairs(redis.call('ZMSCORE', G .. ':due', unpack(starts))) do
    -- What this read is about to park is not parked yet.
    if state.barrier and state.barrier <= offsets[i] then break end
    if tonumber(due or nil) == PARKED then
      parked[#parked + 1] = offsets[i]
    else
      book.freed[#book.freed + 1] = lane_member(state.tag, offsets[i])
      touch(book, state)
    end
  end
  return parked
end

-- Returns whether a read may deliver such a message.
function lanes.may_follow(G, group, plan, state, offset, now)
  return not judge(G, group, plan, state, offset, now, server_us())
end

-- A parked message was delivered.
function lanes.leave(group, state, offset)
  local book = book_of(group)
  book.freed[#book.freed + 1] = lane_member(state.tag, offset)
  touch(book, state)
end

-- Enters what is about to be parked into lanes, and counts what is about to be delivered: spans of offsets, which
-- are in flight until a time, nil when they are not acknowledged.
function lanes.begin(G, group, plan, spans, deadline)
  local members = {}
  for i, member in ipairs(plan.parked) do members[2 * i - 1], members[2 * i] = 0, member end
  for from = 1, #members, 2 * lanes.most do
    redis.call('ZADD', G .. ':lanes', unpack(members, from, math.min(from + 2 * lanes.most - 1, #members)))
  end
  local rate, spent, states = group.limits and group.limits.rate_of_key, {}, {}
  each_state(G, group, spans, function(offset, state, book)
    if deadline then
      state.active[offset] = deadline
      touch(book, state)
    end
    if not spent[state] then spent[state], states[#states + 1] = 0, state end
    spent[state] = spent[state] + 1
  end)
  if not rate or not states[1] then return end
  local us, words = server_us(), {}
  redis.call('ZREMRANGEBYSCORE', G .. ':buckets', '-inf', us)
  for _, state in ipairs(states) do
    words[#words + 1], words[#words + 2] = limits.spend(rate, state.full or 0, us, spent[state]), state.tag
    -- The next judgement reads it again.
    state.plan = nil
  end
  redis.call('ZADD', G .. ':buckets', unpack(words))
end

-- ── Landing and ending ───────────────────────────────────────────────────────────────────────────

-- Messages that members have get another time: in flight until then, or, when it is negative, due then.
function lanes.set_time(G, group, spans, time)
  if not group.noted then return end
  each_state(G, group, spans, function(offset, state, book)
    if not state.active[offset] then return end
    state.active[offset] = time
    touch(book, state)
  end)
end

-- Messages are no longer pending.
function lanes.ended(G, group, spans)
  each_state(G, group, spans, function(offset, state, book)
    if state.active[offset] then
      state.active[offset] = nil
    elseif state.lane then
      book.freed[#book.freed + 1] = lane_member(state.tag, offset)
    end
    touch(book, state)
  end)
end

-- Ranges are replaced: messages that are in the old ones only end, and those in the new ones only are noted again.
function lanes.replaced(G, group, old, new)
  if old[1] and redis.call('EXISTS', G .. ':tags') == 1 then
    local ended = difference(old, new)
    if ended[1] then lanes.ended(G, group, ended) end
  end
  if group.noting or not new[1] then return end
  local begun = difference(new, old)
  if begun[1] then note_again(G, begun) end
end

-- Returns how many messages of a lane may become active now, and when they are due.
local function open_places(G, group, state, now)
  local terms, room, due = group.limits or {}, TOGETHER, now
  local flying, ready, first = 0, 0, math.huge
  for offset, time in pairs(state.active) do
    if time > now then
      flying = flying + 1
    elseif -time <= now then
      ready = ready + 1
    end
    first = math.min(first, offset)
  end
  if group.ordered then room = 1 end
  if group.ordered and first < math.huge then
    -- One that was redriven may have to come before those that are active.
    local parked = flying == 0 and first_parked(G, state.tag, 1)[1]
    room = parked and parked < first and 1 or 0
  end
  if terms.most_of_key then room = math.min(room, terms.most_of_key - flying - ready) end
  if terms.rate_of_key and room > 0 then
    local us = server_us()
    local full = bucket_of(G, terms.rate_of_key, state.tag, us)
    local tokens = limits.tokens(terms.rate_of_key, full, us)
    if tokens == 0 then
      local wait = limits.wait(terms.rate_of_key, full, us, 1) / 1000
      due = now + math.max(math.ceil(math.min(wait, LOOK_MS)), 1)
    end
    -- One that waits for the next token is enough.
    room = math.min(room, math.max(tokens, 1) - ready)
  end
  return room, due
end

-- Makes the first messages of a lane active, as many as the rules allow.
local function refill(G, group, book, state, now)
  if not state.lane then return end
  local room, due = open_places(G, group, state, now)
  if room <= 0 then return end
  room = math.max(1, math.min(room, book.room))
  local offsets = first_parked(G, state.tag, room + 1)
  if #offsets <= room then state.lane = false end
  for i = 1, math.min(room, #offsets) do
    book.room = book.room - 1
    book.dues[#book.dues + 1] = { offset = offsets[i], due = due, state = state }
  end
end

-- Gives the messages that leave their lanes a deadline. One that is not parked was left in its lane by a call that
-- stopped.
local function promote(G, group, book, now)
  for from = 1, #book.dues, lanes.most do
    local starts, words, last = {}, {}, math.min(from + lanes.most - 1, #book.dues)
    for i = from, last do starts[#starts + 1] = digits(book.dues[i].offset) end
    local found = redis.call('ZMSCORE', G .. ':due', unpack(starts))
    for i = from, last do
      local one, due = book.dues[i], tonumber(found[i - from + 1] or nil)
      if due == PARKED then
        words[#words + 1], words[#words + 2] = one.due, digits(one.offset)
        note_due(group, one.due)
        one.state.active[one.offset] = 0
      end
      book.freed[#book.freed + 1] = lane_member(one.state.tag, one.offset)
    end
    if words[1] then redis.call('ZADD', G .. ':due', unpack(words)) end
  end
  book.dues = {}
end

local function write_states(G, states)
  local words, gone = {}, {}
  for _, state in ipairs(states) do
    local text = { state.lane and '*' or '' }
    for offset, time in pairs(state.active) do text[#text + 1] = digits(offset) .. ':' .. digits(time) .. ' ' end
    text = table.concat(text)
    if text == '' then
      gone[#gone + 1] = state.tag
    else
      words[#words + 1], words[#words + 2] = state.tag, text
    end
  end
  for from = 1, #words, 2 * lanes.most do
    redis.call('HSET', G .. ':keys', unpack(words, from, math.min(from + 2 * lanes.most - 1, #words)))
  end
  for from = 1, #gone, lanes.most do
    redis.call('HDEL', G .. ':keys', unpack(gone, from, math.min(from + lanes.most - 1, #gone)))
  end
end

local function free_members(G, members)
  for from = 1, #members, lanes.most do
    redis.call('ZREM', G .. ':lanes', unpack(members, from, math.min(from + lanes.most - 1, #members)))
  end
end

-- Writes the states that a call has changed, and lets messages out of their lanes. The caller saves the group.
function lanes.flush(G, group)
  local book = group.lanes
  if not book.dirty[1] then return end
  if group.pending == 0 then
    redis.call('UNLINK', G .. ':tags', G .. ':keys', G .. ':lanes', G .. ':untagged')
    group.lanes = nil
    return
  end
  local now, states = server_ms(), book.dirty
  free_members(G, book.freed)
  book.freed, book.dirty = {}, {}
  for _, state in ipairs(states) do
    state.dirty = nil
    refill(G, group, book, state, now)
    state.waits_for_token, state.plan, state.seen, state.pulled = nil, nil, nil, nil
  end
  promote(G, group, book, now)
  write_states(G, states)
  free_members(G, book.freed)
  book.freed, book.room = {}, ROOM
end

-- Makes messages due that no rule keeps back for longer than a time, but that would wait longer, because the limits were
-- changed or the clock was set back. Returns whether there were any.
function lanes.hurry(G, group, wait_ms, count)
  local now, book, words = server_ms(), book_of(group), {}
  local found = redis.call('ZRANGE', G .. ':due', '(' .. digits(now + wait_ms), '(' .. digits(PARKED), 'BYSCORE',
    'LIMIT', 0, count)
  for _, start in ipairs(found) do
    local tag, waits = tag_at(G, book, to_number(start)), false
    if tag then
      load_states(G, book, { tag })
      waits = book.states[tag].active[to_number(start)] == 0
    else
      local range = pending_at(G, start)
      waits = range and range.attempt == 0
    end
    if waits then words[#words + 1], words[#words + 2] = now, start end
  end
  if not words[1] then return false end
  note_due(group, now)
  save_group(G, group)
  redis.call('ZADD', G .. ':due', unpack(words))
  return true
end

-- A read found nothing: checks a few lanes that have messages. Returns whether something had to be corrected.
function lanes.look_after(G, group)
  local rules, members = group.ordered or lanes.limited(group), nil
  local rate = group.limits and group.limits.rate_of_key
  local hurried = lanes.hurry(G, group, rate and LOOK_MS or 0, group.draining and lanes.most or SAMPLE)
  if rules then
    -- Another part each time.
    local count = redis.call('ZCARD', G .. ':lanes')
    local from = count > SAMPLE and server_us() % (count - SAMPLE + 1) or 0
    members = redis.call('ZRANGE', G .. ':lanes', from, from + SAMPLE - 1)
  else
    members = redis.call('ZRANGE', G .. ':lanes', 0, lanes.most - 1)
  end
  if not members[1] then
    if not rules then lanes.stop(G, group) end
    return hurried or not rules
  end
  local book, tags = book_of(group), {}
  for i, member in ipairs(members) do tags[i] = string.sub(member, 1, 8) end
  load_states(G, book, tags)
  for _, tag in ipairs(tags) do
    local state, checks = book.states[tag], SAMPLE
    for offset in pairs(state.active) do
      if checks > 0 then
        checks = checks - 1
        is_there(G, group, state, offset)
      end
    end
    book.corrected = book.corrected or not next(state.active)
    state.lane = true
    touch(book, state)
  end
  save_group(G, group)
  return hurried or book.corrected
end

-- ── Turning it off ───────────────────────────────────────────────────────────────────────────────

-- Forgets all tags: nothing is parked, and nothing asks for tags any more.
function lanes.stop(G, group)
  redis.call('UNLINK', G .. ':tags', G .. ':keys', G .. ':lanes', G .. ':untagged')
  group.lanes, group.draining, group.noted = nil, false, false
  change(group, 'draining', '')
  change(group, 'unnoted', 0)
  save_group(G, group)
end

end

--[[
  Delivery: chooses the messages that the next reader of a group gets. Everything is planned first and changed
  afterwards, so that a call that stops leaves nothing half delivered.

  A write to a stream with blocked members runs this before it is answered, so every redis.call counts.
]]
-- How many ranges for blocked members are recorded before they are booked.
local HANDED_BYTES = 1024

-- How many due ranges one read looks at; each may be in another node.
local TAKE_RANGES = 128

-- Gives up ranges that have expired; with dead letters they stay pending. starts: of those that go to the
-- dead letters. A range that is in both places is given up again.
local function mark_expired(G, starts)
  local words = {}
  for i, start in ipairs(starts) do words[2 * i - 1], words[2 * i] = start, start end
  redis.call('ZADD', G .. ':expired', unpack(words))
  redis.call('ZREM', G .. ':due', unpack(starts))
end

-- Chooses messages for one reader; below.
local take

-- A block of its own: Lua allows 200 local names in the enclosing function.
do

-- Plans what happens to a range that is due; upto: nothing beyond it is delivered; cut: it is a part of a
-- range that is removed.
local function plan_range(K, stream, now, retry, expire, bag, plan, range, upto, cut)
  local rest = range
  if range.first < stream.first then
    local gone = math.min(range.last, stream.first - 1)
    plan.gaps[#plan.gaps + 1] = { range.first, gone }
    rest = gone < range.last and part_of(range, gone + 1, range.last) or nil
    if not cut then plan.old[#plan.old + 1] = range end
  end
  local covered, got = 0, 0
  if plan.limited then upto = math.min(upto, range.last, (rest or range).first + plan.left - 1) end
  if rest and plan.left > 0 then covered, got = collect(K, stream, rest.first, math.min(rest.last, upto), plan.left, bag) end
  if rest and covered >= rest.first then
    if rest == range and not cut then plan.old[#plan.old + 1] = range end
    local attempt = rest.attempt + 1
    if retry then
      local ends = rest.expire
      if ends == NEVER and expire then ends = now + expire end
      plan.new[#plan.new + 1] =
        { first = rest.first, last = covered, attempt = attempt, due = now + retry, expire = ends }
    end
    if covered < rest.last then
      plan.new[#plan.new + 1] = part_of(rest, covered + 1, rest.last)
    end
    local n = #plan.claims
    plan.claims[n + 1], plan.claims[n + 2], plan.claims[n + 3] = rest.first, covered, attempt
    plan.left = plan.left - (plan.limited and covered - rest.first + 1 or got)
    -- What follows it in its tag may have been promised to the same reader.
    if plan.noted and covered < math.min(rest.last, upto) then plan.full = true end
    if attempt > 1 or not plan.noted then plan.again = plan.again + got end
  elseif rest then
    if rest ~= range or cut then plan.new[#plan.new + 1] = rest end
    plan.full = bag.bytes >= bag.limit
  end
end

-- The same in a group whose tags are noted: a message that must wait gets another deadline. No message is delivered
-- whose tag is not noted.
local function plan_by_tag(K, G, stream, group, now, retry, expire, bag, plan, range)
  local rest, cut = range, false
  -- What was evicted waits for nothing.
  if range.first < stream.first then
    local gone = math.min(range.last, stream.first - 1, range.first + plan.checks - 1)
    plan.gaps[#plan.gaps + 1] = { range.first, gone }
    plan.old[#plan.old + 1], cut = range, true
    plan.checks = plan.checks - (gone - range.first + 1)
    lanes.drop(G, group, plan, range.first, gone)
    rest = gone < range.last and part_of(range, gone + 1, range.last) or nil
  end
  while rest do
    if plan.left <= 0 or plan.full or plan.checks <= 0 or rest.first >= plan.unnoted then
      if cut then plan.new[#plan.new + 1] = rest end
      return
    end
    local upto = math.min(rest.last, rest.first + math.min(plan.left, lanes.most) - 1, plan.unnoted - 1)
    local parts, behind = lanes.parts(G, group, plan, rest, upto, now), nil
    plan.checks = plan.checks - (upto - rest.first + 1)
    if not parts then return plan_range(K, stream, now, retry, expire, bag, plan, rest, upto, cut) end
    if not cut then plan.old[#plan.old + 1], cut = range, true end
    for _, part in ipairs(parts) do
      if part.first > upto then
        behind = part
      elseif part.due > now or plan.full then
        plan.new[#plan.new + 1] = part
      else
        plan_range(K, stream, now, retry, expire, bag, plan, part, part.last, true)
      end
    end
    rest = behind
  end
end

-- Plans the delivery of parked messages that may follow what is delivered or dropped.
local function plan_followers(K, G, stream, group, now, retry, expire, bag, plan)
  local place, offsets = 1, {}
  while plan.movers[place] and plan.left > 0 and not plan.full and plan.checks > 0 do
    local state = plan.movers[place]
    if not offsets[1] then offsets = lanes.followers(G, group, plan, state, now) end
    local offset = table.remove(offsets, 1)
    local range = offset and pending_at(G, digits(offset))
    plan.checks = plan.checks - 1
    if offset and offset >= plan.unnoted then
      group.held_back, range = true, nil
    end
    if range and range.first < stream.first then
      plan.gaps[#plan.gaps + 1] = { range.first, range.last }
      plan.old[#plan.old + 1] = range
      lanes.drop(G, group, plan, range.first, range.last)
    elseif range and lanes.may_follow(G, group, plan, state, offset, now) then
      local before = plan.left
      range.due = PARKED
      plan_range(K, stream, now, retry, expire, bag, plan, range, range.last)
      if plan.left < before then lanes.leave(group, state, offset) end
    else
      place, offsets = place + 1, {}
    end
  end
  -- Some may be left that a next call looks at.
  return plan.movers[place] and plan.left > 0 and not plan.full
end

-- Plans the delivery of due messages: which ranges are removed and which replace them, and the claims of the
-- reader. Returns whether more is due than was looked at.
local function plan_due(K, G, stream, group, now, retry, expire, bag, plan)
  local most = plan.noted and STEP_RANGES or TAKE_RANGES
  local due = redis.call('ZRANGE', G .. ':due', '-inf', digits(now), 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES')
  local more, starts, dues = #due == 2 * most, {}, {}
  for i = 1, #due, 2 do
    starts[#starts + 1] = due[i]
    dues[due[i]] = tonumber(due[i + 1])
  end
  -- What is parked because of an earlier message would not follow it in this read.
  if plan.noted then table.sort(starts, function(a, b) return to_number(a) < to_number(b) end) end
  for _, start in ipairs(starts) do
    if plan.left <= 0 or plan.full or plan.checks <= 0 then return true end
    local range = pending_at(G, start)
    if not range then
      plan.strays[#plan.strays + 1] = start
    elseif range.expire ~= NEVER and range.expire <= now then
      if group.dead_letters ~= '' then
        plan.waiting[#plan.waiting + 1] = start
      else
        local last = plan.noted and math.min(range.last, range.first + plan.checks - 1) or range.last
        plan.old[#plan.old + 1] = range
        if last < range.last then
          range.due = dues[start]
          plan.new[#plan.new + 1] = part_of(range, last + 1, range.last)
        end
        plan.expired = plan.expired + last - range.first + 1
        plan.checks = plan.checks - (last - range.first + 1)
        if plan.noted then lanes.drop(G, group, plan, range.first, last) end
      end
    else
      range.due = dues[start]
      if plan.noted and range.last >= plan.unnoted then group.held_back = true end
      if plan.noted and range.first >= plan.unnoted then
        -- It stays due until its tags are noted.
      elseif plan.noted then
        plan_by_tag(K, G, stream, group, now, retry, expire, bag, plan, range)
      else
        plan_range(K, stream, now, retry, expire, bag, plan, range, range.last)
      end
    end
  end
  if plan.noted and plan_followers(K, G, stream, group, now, retry, expire, bag, plan) then more = true end
  return more
end

-- Returns whether a range for a blocked member is only recorded, and booked by the next call that looks at
-- pending messages.
local function may_be_noted(group, bag)
  return bag.waiter and #group.handed < HANDED_BYTES
end

-- Delivers new messages from `next` on, up to `covered`. With retry they are pending from now on. Ranges for
-- a blocked member are booked by a later call, because a writer waits for this one.
local function hand_out_new(G, group, now, covered, retry, expire, bag)
  local first = group.next
  change(group, 'next', covered + 1)
  if not retry then return end
  local ends, due = expire and now + expire or NEVER, now + retry
  if ends ~= NEVER then due = math.min(due, ends) end
  if not may_be_noted(group, bag) then return add_range(G, group, first, covered, due, ends) end
  note_due(group, due)
  change(group, 'handed', group.handed .. bag.waiter .. ':' .. digits(now) .. ':' .. digits(first) .. ':' ..
    digits(covered) .. ':' .. digits(due) .. ':' .. digits(ends) .. ' ')
  change(group, 'pending', group.pending + covered - first + 1)
  bag.noted = true
end

-- Carries out the plan for due ranges, some of which have been evicted.
local function carry_out(G, group, plan)
  if plan.gaps[1] or plan.expired > 0 then load_counts(G, group) end
  if plan.old[1] or plan.new[1] then replace_ranges(G, group, plan.old, plan.new) end
  for _, gap in ipairs(plan.gaps) do record_gap(group, gap[1], gap[2]) end
  if plan.expired > 0 then change(group, 'expired', group.expired + plan.expired) end
  if plan.next then change(group, 'next', plan.next) end
  if plan.waiting[1] then afterwards(mark_expired, G, plan.waiting) end
  if plan.strays[1] then redis.pcall('ZREM', G .. ':due', unpack(plan.strays)) end
  -- Only for monitoring; nothing depends on it.
  if plan.again > 0 then redis.pcall('HINCRBY', G, 'redelivered', plan.again) end
  if plan.looked then
    local first = redis.pcall('ZRANGE', G .. ':due', 0, 0, 'WITHSCORES')
    change(group, 'due', not refused(first) and tonumber(first[2] or 0) or 0)
  end
end

local function new_plan(count)
  return {
    claims = {}, old = {}, new = {}, waiting = {}, strays = {}, gaps = {}, expired = 0, again = 0,
    left = count, full = false, checks = lanes.checks, owned = {}, parked = {}, movers = {},
  }
end

-- Returns how many more messages a group may deliver, including what is planned.
local function allowed(group, plan, left)
  if group.max_pending == 0 then return left end
  local pending = group.pending
  for _, range in ipairs(plan and plan.old or {}) do pending = pending - size_of(range) end
  for _, range in ipairs(plan and plan.new or {}) do pending = pending + size_of(range) end
  return math.min(left, group.max_pending - pending)
end

-- Chooses up to `count` messages for one reader: first those that are due again, then new ones. With retry
-- they become pending; without, they are only delivered. Returns claims as a flat list: first, last, attempt,
-- ...; whether there is more to deliver; and whether more was due than one call looks at.
function take(K, G, stream, group, now, count, retry, expire, bag)
  -- The group is paused (group_pause.lua).
  if group.max_pending < 0 then return {}, false, false end
  if group.limits then count = flights.room(G, group, now, count, retry) end
  local plan, left, unfinished, more_due = nil, count, false, false
  -- With order: a reader that has everything that is pending gets more as in any other group.
  group.sole = group.ordered and not lanes.limited(group) and bag.owned and lanes.has_all(G, group, bag.owned)
  if group.pending > 0 and group.due <= now then
    book_group(G, group)
    if count > 0 then
      local noted = group.noted and not group.sole
      plan = new_plan(noted and math.min(count, lanes.most) or count)
      plan.limited, plan.noted = group.limits ~= nil, noted
      if noted then
        plan.unnoted = lanes.first_unnoted(G, stream, group, now)
        plan.owned = bag.owned or {}
      end
      local more = plan_due(K, G, stream, group, now, retry, expire, bag, plan)
      left = plan.left
      more_due = more and #plan.claims > 0
      unfinished = more and left > 0 and not plan.full and not group.held_back
      -- Otherwise the next due time is not known before another look.
      plan.looked = not more
      if more then change(group, 'due', 0) end
    end
  end
  if group.next < stream.first then
    plan = plan or new_plan(count)
    plan.gaps[#plan.gaps + 1] = { group.next, stream.first - 1 }
    group.next, plan.next = stream.first, stream.first
  end
  local first, covered = group.next, 0
  -- Where tags are noted, other new messages are delivered after that.
  if first <= stream.last and not (plan and plan.full) and (group.sole or not group.noted) then
    left = allowed(group, plan, left)
    if group.sole then left = math.min(left, lanes.ahead - group.pending) end
    local to = group.limits and math.min(stream.last, first + left - 1) or stream.last
    if left > 0 then covered = collect(K, stream, first, to, left, bag) end
    -- Recorded ranges are booked first: they are above everything that is booked.
    if covered >= first and not may_be_noted(group, bag) then book_group(G, group) end
  end
  if group.limits or group.noted then flights.begin(G, group, plan, first, covered, now, retry) end
  -- Everything is read. Once ranges are replaced nothing keeps the reader from its claims.
  if plan then carry_out(G, group, plan) end
  local claims = plan and plan.claims or {}
  if covered >= first then
    if group.sole then lanes.leave_unnoted(G, group) end
    hand_out_new(G, group, now, covered, retry, expire, bag)
    local n = #claims
    claims[n + 1], claims[n + 2], claims[n + 3] = first, covered, 1
  end
  save_group(G, group)
  return claims, more_due or unfinished or group.next <= stream.last, unfinished
end

end

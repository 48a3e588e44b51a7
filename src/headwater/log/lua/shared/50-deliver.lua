--[[
  Delivery: chooses the messages that the next reader of a group gets. Everything is planned first and changed
  afterwards, so that a call that stops leaves nothing half delivered.

  A write to a stream with blocked members runs this before it is answered, so every redis.call counts.
]]
-- How many ranges for blocked members are recorded before they are booked.
local HANDED_BYTES = 1024

-- How many due ranges one read looks at; each may be in another node.
local TAKE_RANGES = 128

-- Runs a step after the caller's own work is done: its failure must not look like a failure of the caller.
local function afterwards(work, ...)
  local done, fault, more = pcall(work, ...)
  if done then return fault, more end
  redis.log(redis.LOG_WARNING, 'headwater: ' .. tostring(type(fault) == 'table' and fault.err or fault))
  return nil
end

-- Gives up ranges that have expired; with dead letters they stay pending. starts: of those that go to the
-- dead letters. A range that is in both places is given up again.
local function mark_expired(G, starts)
  local words = {}
  for i, start in ipairs(starts) do words[2 * i - 1], words[2 * i] = start, start end
  redis.call('ZADD', G .. ':expired', unpack(words))
  redis.call('ZREM', G .. ':due', unpack(starts))
end

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
    if plan.owned then tag_order.own(plan.owned, rest.first, covered) end
    if attempt > 1 or not plan.noted then plan.again = plan.again + got end
  elseif rest then
    if rest ~= range or cut then plan.new[#plan.new + 1] = rest end
    plan.full = bag.bytes >= bag.limit
  end
end

-- Returns the parts of a range, up to an offset, that may and may not be delivered, by order and by the
-- limits per key; or nil when all of it may.
local function parts_of(G, group, now, plan, range, upto)
  local parts = plan.owned and tag_order.part(G, range, upto, plan.owned)
  if not plan.keys then return parts end
  local found, any = {}, parts and true
  for _, part in ipairs(parts or { range }) do
    local some = part.first <= upto and part.due <= now
      and per_key.part(G, group, plan, part, math.min(part.last, upto), now)
    any = any or some
    for _, each in ipairs(some or { part }) do found[#found + 1] = each end
  end
  return any and found or nil
end

-- The same in a group whose tags are noted: a message that must wait for others of its tag gets another
-- deadline. No message is delivered whose tag is not noted.
local function plan_in_order(K, G, stream, group, now, retry, expire, bag, plan, range)
  local rest, cut = range, false
  while rest do
    local upto = math.min(rest.last, rest.first + math.min(plan.left, tag_order.most) - 1, plan.unnoted - 1)
    local parts, behind = parts_of(G, group, now, plan, rest, upto), nil
    plan.checks = plan.checks - (upto - rest.first + 1)
    if not parts then return plan_range(K, stream, now, retry, expire, bag, plan, rest, upto, cut) end
    if not cut then plan.old[#plan.old + 1], cut = range, true end
    for _, part in ipairs(parts) do
      if part.first > upto then
        behind = part
      elseif part.due > now then
        plan.new[#plan.new + 1] = part
      else
        plan_range(K, stream, now, retry, expire, bag, plan, part, part.last, true)
      end
    end
    if behind and (plan.left <= 0 or plan.full or plan.checks <= 0 or behind.first >= plan.unnoted) then
      plan.new[#plan.new + 1], behind = behind, nil
    end
    rest = behind
  end
end

-- Plans the delivery of due messages: which ranges are removed and which replace them, and the claims of the
-- reader. Returns whether more is due than was looked at.
local function plan_due(K, G, stream, group, now, retry, expire, bag, plan)
  local due = redis.call('ZRANGE', G .. ':due', '-inf', digits(now), 'BYSCORE', 'LIMIT', 0,
    TAKE_RANGES, 'WITHSCORES')
  for i = 1, #due, 2 do
    if plan.left <= 0 or plan.full or plan.checks <= 0 then return true end
    local range = pending_at(G, due[i])
    if not range then
      plan.strays[#plan.strays + 1] = due[i]
    elseif range.expire ~= NEVER and range.expire <= now then
      if group.dead_letters ~= '' then
        plan.waiting[#plan.waiting + 1] = due[i]
      else
        plan.old[#plan.old + 1] = range
        plan.expired = plan.expired + size_of(range)
      end
    else
      range.due = tonumber(due[i + 1])
      if plan.noted and range.last >= plan.unnoted then group.held_back = true end
      if plan.noted and range.first >= plan.unnoted then
        -- It stays due until its tags are noted.
      elseif plan.noted then
        plan_in_order(K, G, stream, group, now, retry, expire, bag, plan, range)
      else
        plan_range(K, stream, now, retry, expire, bag, plan, range, range.last)
      end
    end
  end
  return #due == 2 * TAKE_RANGES
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
    left = count, full = false, checks = tag_order.checks,
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
local function take(K, G, stream, group, now, count, retry, expire, bag)
  -- The group is paused (group_pause.lua).
  if group.max_pending < 0 then return {}, false, false end
  if group.limits then count = flights.room(G, group, now, count, retry) end
  local plan, left, unfinished, more_due = nil, count, false, false
  -- With order: a reader that has everything that is pending gets more as in any other group.
  group.sole = group.ordered and not per_key.counted(group) and bag.owned and tag_order.has_all(G, group, bag.owned)
  if group.pending > 0 and group.due <= now then
    book_group(G, group)
    if count > 0 then
      local noted = group.noted and not group.sole
      plan = new_plan(noted and math.min(count, tag_order.most) or count)
      plan.limited, plan.noted = group.limits ~= nil, noted
      if noted then plan.unnoted = tag_order.first_unnoted(G, stream, group) end
      if noted and group.ordered then plan.owned = tag_order.set_of(bag.owned or {}) end
      if per_key.counted(group) then plan.keys, plan.tags, plan.kept = {}, {}, {} end
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
  -- With order or limits per key, other new messages are delivered when their tags are noted
  -- (42-note-tags.lua).
  if first <= stream.last and not (plan and plan.full) and (group.sole or not group.noted) then
    left = allowed(group, plan, left)
    if group.sole then left = math.min(left, tag_order.ahead - group.pending) end
    local to = group.limits and math.min(stream.last, first + left - 1) or stream.last
    if left > 0 then covered = collect(K, stream, first, to, left, bag) end
    -- Recorded ranges are booked first: they are above everything that is booked.
    if covered >= first and not may_be_noted(group, bag) then book_group(G, group) end
  end
  if group.limits then flights.begin(G, group, plan, first, covered, now, retry) end
  -- Everything is read. Once ranges are replaced nothing keeps the reader from its claims.
  if plan then carry_out(G, group, plan) end
  local claims = plan and plan.claims or {}
  if covered >= first then
    if group.sole then tag_order.leave_unnoted(G, group) end
    hand_out_new(G, group, now, covered, retry, expire, bag)
    local n = #claims
    claims[n + 1], claims[n + 2], claims[n + 3] = first, covered, 1
  end
  save_group(G, group)
  return claims, more_due or unfinished or group.next <= stream.last, unfinished
end

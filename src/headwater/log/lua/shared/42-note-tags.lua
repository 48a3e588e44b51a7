--[[
  Noting tags, which a reader sends with its read, so that messages from `next` on can be delivered. Messages
  that were delivered without noted tags are noted before these. If several readers note the same messages, one
  succeeds, and what the others sent is ignored.
]]
-- A block of its own: Lua allows 200 local names in the enclosing function.
do

-- Returns the last message of each tag that was noted before, as stored, by tag; false for none.
local function tails_of(G, args, at)
  local tags, tails = {}, {}
  for i = at + 1, #args, 2 do
    local tag = args[i]
    if tag ~= '' and tails[tag] == nil then
      tags[#tags + 1], tails[tag] = tag, false
    end
  end
  local found = tags[1] and redis.call('ZMSCORE', G .. ':tails', unpack(tags)) or {}
  for i, tag in ipairs(tags) do tails[tag] = found[i] end
  return tails
end

-- Plans the notes from an offset on: the ranges, from `next` on, which are due, and parked when a read finds
-- that they must wait; and the words of the notes: predecessor, successor, and the last message of each tag.
-- Messages that were delivered and are no longer pending are skipped.
local function plan_noted(G, args, at, from, next_one, now)
  local tails, seen, view = tails_of(G, args, at), {}, tag_order.view(G)
  local ranges, before, after, last, range = {}, {}, {}, {}, nil
  for i = at, #args, 2 do
    local word, tag = args[i], args[i + 1]
    local offset = to_number(word)
    local counts = offset >= from and (offset >= next_one or tag_order.is_pending(view, offset))
    if tag ~= '' and counts then
      local pred = seen[tag]
      if not pred then
        pred = tails[tag] and tag_order.last_pending(G, view, tails[tag], from)
        pred = pred and digits(pred)
        last[#last + 1] = tag
      end
      if pred then
        local n = #before
        before[n + 1], before[n + 2], after[n + 1], after[n + 2] = word, pred, pred, word
      end
      seen[tag] = word
    end
    if offset < next_one then
      range = nil
    elseif range and range.last == offset - 1 then
      range.last = offset
    else
      range = { first = offset, last = offset, attempt = 0, due = now, expire = NEVER }
      ranges[#ranges + 1] = range
    end
  end
  local words = {}
  for i, tag in ipairs(last) do words[2 * i - 1], words[2 * i] = seen[tag], tag end
  return ranges, before, after, words
end

-- Returns the first offset that is pending, or the one given; tags whose last message is below it are
-- forgotten.
function tag_order.oldest(G, otherwise)
  local oldest = redis.call('ZRANGE', G .. ':pending', 0, 0, 'WITHSCORES')[2]
  return oldest and tonumber(oldest) or otherwise
end

-- Notes messages of a group that keeps order. args, from a place on: `created` as read, the first and the
-- last offset that were looked at, then offset and tag of each message in between.
function tag_order.note(G, group, stream, args, place, now)
  local created, looked, last = args[place], tonumber(args[place + 1]), tonumber(args[place + 2])
  if not created or stream.created ~= created then return end
  local from = tag_order.first_unnoted(G, stream, group)
  if looked > from or last < from then return end
  local ranges, before, after, tails = nil, {}, {}, {}
  if per_key.counted(group) then ranges = per_key.note(G, args, place + 3, from, group.next, now) end
  if group.ordered then
    ranges, before, after, tails = plan_noted(G, args, place + 3, from, group.next, now)
  end
  -- Notes of a call that stopped before it could move `next`.
  local left = last >= group.next and find_ranges(G, group.next, last, STEP_RANGES) or {}
  if before[1] then
    set_fields(G .. ':before', before, #before)
    set_fields(G .. ':after', after, #after)
  end
  if tails[1] then add_members(G .. ':tails', tails) end
  if ranges[1] then replace_ranges(G, group, left, ranges) end
  change(group, 'unnoted', last + 1 < group.next and last + 1 or 0)
  if last >= group.next then change(group, 'next', last + 1) end
  save_group(G, group)
  redis.pcall('ZREMRANGEBYSCORE', G .. ':tails', '-inf', '(' .. digits(tag_order.oldest(G, last)))
end

end

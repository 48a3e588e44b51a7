--[[
  Redriving and discarding dead letters.
]]
-- Orders ranges and joins neighbours. A message that became a dead letter twice, for example after a seek,
-- has two letters and is in one range.
local function joined_ranges(ranges)
  table.sort(ranges, function(a, b) return a.first < b.first end)
  local joined = {}
  for _, range in ipairs(ranges) do
    local before = joined[#joined]
    if before and range.first <= before.last + 1 then
      before.last = math.max(before.last, range.last)
    else
      joined[#joined + 1] = range
    end
  end
  return joined
end

-- Plans which messages become pending when letters are redriven; messages that a seek made new again are
-- delivered anyway. letters: ranges of messages, in order. Returns ranges that become pending; ranges that
-- are pending again and are removed; and the ranges that replace those.
local function plan_back(G, group, letters, now)
  local new, old, instead = {}, {}, {}
  -- The range that was cut last begins here, and this part of it is left after the cut.
  local cut, left = nil, nil
  local function back(first, last)
    return { first = first, last = last, attempt = 0, due = now, expire = NEVER }
  end
  for _, letter in ipairs(letters) do
    local first, last = letter.first, math.min(letter.last, group.next - 1)
    local at = first
    for _, range in ipairs(first <= last and find_ranges(G, first, last, last - first + 1) or {}) do
      if range.first > at then new[#new + 1] = back(at, range.first - 1) end
      if left and range.first == cut then
        range, left = left, nil
      else
        if left then instead[#instead + 1], left = left, nil end
        old[#old + 1], cut = range, range.first
      end
      local low, high = math.max(range.first, first), math.min(range.last, last)
      if range.first < low then instead[#instead + 1] = part_of(range, range.first, low - 1) end
      instead[#instead + 1] = back(low, high)
      if high < range.last then left = part_of(range, high + 1, range.last) end
      at = high + 1
    end
    if at <= last then new[#new + 1] = back(at, last) end
  end
  if left then instead[#instead + 1] = left end
  return new, old, instead
end

-- Plans to remove letters from their places; words: offset among the dead letters, offset in the stream, ...
-- in ascending order, from a place on. A letter of another message is kept, and so are letters of messages
-- before `first`. Returns members to remove, what is kept of them, the messages, and how many letters were
-- kept because of `first`.
local function plan_named(G, words, from, room, first)
  local members, stay, gone, left, evicted = {}, {}, {}, nil, 0
  local function keep(range, last)
    if range.first <= last then dead_ranges.add(stay, range.at, range.first, last, range.attempt) end
  end
  for i = from, #words, 2 do
    if #gone == room then break end
    local at, origin = tonumber(words[i]), tonumber(words[i + 1])
    if not left or at > left.at + left.last - left.first then
      if left then keep(left, left.last) end
      left = dead_ranges.covering(G, at)
      if left then members[#members + 1] = left.member end
    end
    if left and left.at <= at and left.first + at - left.at == origin then
      if origin < first then
        evicted = evicted + 1
      else
        keep(left, origin - 1)
        gone[#gone + 1] = { first = origin, last = origin }
        left = { at = at + 1, first = origin + 1, last = left.last, attempt = left.attempt }
      end
    end
  end
  if left then keep(left, left.last) end
  return members, stay, gone, evicted
end

-- Plans to redrive the oldest letters, from a place on and before an end. Returns members to remove, what is kept of
-- them, the messages, how many letters were kept because their messages are evicted, and where to continue.
local function plan_oldest_back(G, from, stop, room, stream_first)
  local members, stay, back, evicted, place = {}, {}, {}, 0, -1
  for i, member in ipairs(dead_ranges.between(G, from, stop)) do
    if room <= 0 then break end
    local at, first, last, attempt = string.match(member, '^(%d+):(%d+):(%d+):(%d+)$')
    at, first, last = tonumber(at), tonumber(first), tonumber(last)
    if i == STEP_RANGES then place = at + last - first + 1 end
    if first < stream_first then evicted = evicted + math.min(last, stream_first - 1) - first + 1 end
    if last >= stream_first then
      members[#members + 1] = member
      if first < stream_first then
        dead_ranges.add(stay, at, first, stream_first - 1, attempt)
        at, first = at + stream_first - first, stream_first
      end
      local stop = math.min(last, first + room - 1)
      if stop < last then dead_ranges.add(stay, at + stop - first + 1, stop + 1, last, attempt) end
      back[#back + 1] = { first = first, last = stop }
      room = room - (stop - first + 1)
    end
  end
  return members, stay, back, evicted, place
end

local function sum_of(ranges)
  local messages = 0
  for _, range in ipairs(ranges) do messages = messages + size_of(range) end
  return messages
end

--[[
  hw_group_redrive: let the group redeliver dead letters, at once, with a new count of attempts.
  A message that the log no longer holds stays a dead letter. One that fails again meanwhile becomes a new
  letter, at or after the end that hw_group_dead returned before.
  KEYS   1 the stream
  ARGV   1 group   2 how many messages at most   3 offset among the dead letters to continue from, 0 to begin
         4 offset among the dead letters to end before; letters that are named may be after it
         5.. offset among the dead letters, offset in the stream that it came from, ... in ascending order;
             none: the oldest
  Reply  { messages redriven, messages left because the log has evicted them,
           offset among the dead letters to continue from or -1 at the end }
         error HW_NO_GROUP
  Cost   O(STEP_RANGES · log pending ranges) in one call
]]
redis.register_function{
  function_name = 'hw_group_redrive',
  callback = function(keys, args)
    local K, name, room, from, stop, named = keys[1], args[1], tonumber(args[2]), args[3], args[4], args[5]
    local G, stream, now = group_key(K, name), load_stream(K), server_ms()
    local group = open_group(G, stream)
    if not group then return no_group() end
    book_group(G, group)
    load_counts(G, group)
    local members, stay, letters, evicted, place
    if named then
      members, stay, letters, evicted = plan_named(G, args, 5, room, stream.first)
    else
      members, stay, letters, evicted, place = plan_oldest_back(G, from, stop, room, stream.first)
    end
    local back = sum_of(letters)
    letters = joined_ranges(letters)
    if back > 0 then
      local new, old, instead = plan_back(G, group, letters, now)
      lower_position(K, name, letters[1].first)
      dead_ranges.replace(G, members, stay)
      change(group, 'buried', group.buried - back)
      -- Their letters are removed: from here on nothing raises.
      if new[1] then replace_ranges(G, group, {}, new) end
      if old[1] then afterwards(replace_ranges, G, group, old, instead) end
    end
    save_group(G, group)
    for _, range in ipairs(letters) do failures.forget(G, range.first, range.last) end
    if back > 0 then serve(K, name, stream, now) end
    return { back, evicted, place or -1 }
  end,
  flags = { 'allow-oom' },
}

-- Plans the same for the oldest letters.
local function plan_oldest(G, stop, room)
  local members, stay, gone = {}, {}, {}
  for _, member in ipairs(dead_ranges.between(G, 0, stop)) do
    if room <= 0 then break end
    local at, first, last, attempt = string.match(member, '^(%d+):(%d+):(%d+):(%d+)$')
    at, first, last = tonumber(at), tonumber(first), tonumber(last)
    local stop = math.min(last, first + room - 1)
    members[#members + 1] = member
    if stop < last then dead_ranges.add(stay, at + stop - first + 1, stop + 1, last, attempt) end
    gone[#gone + 1] = { first = first, last = stop }
    room = room - (stop - first + 1)
  end
  return members, stay, gone
end

--[[
  hw_group_discard: forget dead letters. The messages stay in the stream of the dead letters, whose
  retention removes them.
  KEYS   1 the stream
  ARGV   1 group   2 how many messages at most
         3 offset among the dead letters to end before, from hw_group_dead; letters that are named may lie behind it
         4.. offset among the dead letters, offset in the stream that it came from, ... in ascending order;
             none: the oldest
  Reply  { messages forgotten, 1 when another call has more to do }
         error HW_NO_GROUP
  Cost   O(STEP_RANGES · log dead letters) in one call
]]
redis.register_function{
  function_name = 'hw_group_discard',
  callback = function(keys, args)
    local K, name, room, stop, named = keys[1], args[1], tonumber(args[2]), args[3], args[4]
    local G = group_key(K, name)
    local group = open_group(G, load_stream(K))
    if not group then return no_group() end
    load_counts(G, group)
    local members, stay, gone
    if named then
      members, stay, gone = plan_named(G, args, 4, room, 0)
    else
      members, stay, gone = plan_oldest(G, stop, room)
    end
    local messages = sum_of(gone)
    if messages > 0 then
      dead_ranges.replace(G, members, stay)
      change(group, 'buried', group.buried - messages)
    end
    save_group(G, group)
    for _, range in ipairs(gone) do failures.forget_causes(G, range.first, range.last) end
    return { messages, not named and #members == STEP_RANGES and messages < room and 1 or 0 }
  end,
  flags = { 'allow-oom' },
}

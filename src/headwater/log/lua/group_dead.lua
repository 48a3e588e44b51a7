--[[
  hw_group_bury: move expired messages to the dead letters, which are a stream of their own.
  That stream may lie in another slot, so this takes two steps that anyone may repeat: a batch is
  numbered and noted, whoever gets it writes it with (producer, number), and then reports it as written.

  KEYS   1 the stream
  ARGV   1 group   2 number of the batch that was written, or ''   3 its first offset among the dead letters
         4 messages in a batch at most
  Reply  { messages that became dead letters by this call, number of the batch to write now,
           { first, last, attempt, ... } of it ({} when there is none), stream of the dead letters }
         error HW_NO_GROUP

  A message that was acknowledged after its batch was noted is done: its letter lies in the stream
  of the dead letters, but counts for nothing and is never redriven.
  G field "burying": "number first:last:attempt,..."; G:dead zset: score: offset among the dead letters;
  member: "offset:first:last:attempt"; G field "grave": the stream they all lie in
]]
local function dead_words(words, at, first, last, attempt)
  local n = #words
  words[n + 1] = digits(at)
  words[n + 2] = table.concat({ digits(at), digits(first), digits(last), attempt }, ':')
end

-- Returns what waits for the dead letters, `room` ranges at most; entries without a range are dropped.
local function waiting_ranges(G, room)
  local ranges, strays = {}, {}
  for _, start in ipairs(redis.call('ZRANGE', G .. ':expired', 0, room - 1)) do
    local range = pending_at(G, start)
    if range then
      range.waits = true
      ranges[#ranges + 1] = range
    else
      strays[#strays + 1] = start
    end
  end
  if strays[1] then redis.call('ZREM', G .. ':expired', unpack(strays)) end
  return ranges
end

-- Dead letters were turned off after messages had expired: these are dropped like any other.
local function drop_expired(G, group)
  load_counts(G, group)
  local ranges, before = waiting_ranges(G, STEP_RANGES), group.pending
  if group.burying ~= '' then change(group, 'burying', '') end
  if ranges[1] then
    replace_ranges(G, group, ranges, {})
    change(group, 'expired', group.expired + before - group.pending)
  end
  save_group(G, group)
  return { 0, 0, {}, '' }
end

-- Numbers grow beyond those of any group of this name that was removed: the stream of the dead
-- outlives groups, and remembers what it was sent under which number.
local function next_burial(G)
  return math.max(tonumber(redis.call('HGET', G, 'burials') or 0) + 1, server_us())
end

-- A batch is in the stream of the dead letters, from `at` on. Returns how many of its messages were
-- still pending, and so are dead now.
local function note_buried(G, group, at)
  local old, words, before = {}, {}, group.pending
  local rest, kept = {}, {}
  for first, last, attempt in string.gmatch(group.burying, '(%d+):(%d+):(%d+)') do
    local place = at - tonumber(first)
    local gone, left, parts = plan_cuts(G, { first, last }, 1)
    for _, range in ipairs(gone) do old[#old + 1] = range end
    for _, range in ipairs(left) do rest[#rest + 1] = range end
    for _, part in ipairs(parts) do dead_words(words, place + part.first, part.first, part.last, attempt) end
    kept[#kept + 1] = { tonumber(first), tonumber(last) }
    at = at + tonumber(last) - tonumber(first) + 1
  end
  if old[1] then
    load_counts(G, group)
    replace_ranges(G, group, old, rest)
    add_members(G .. ':dead', words)
    local buried = before - group.pending
    change(group, 'buried', group.buried + buried)
    change(group, 'expired', group.expired + buried)
  end
  change(group, 'burying', '')
  save_group(G, group)
  for _, range in ipairs(kept) do failures.keep(G, range[1], range[2]) end
  return before - group.pending
end

redis.register_function{
  function_name = 'hw_group_bury',
  callback = function(keys, args)
    local K, name, written, written_at, most = keys[1], args[1], args[2], tonumber(args[3]), tonumber(args[4])
    local G, stream = group_key(K, name), load_stream(K)
    local group = open_group(G, stream)
    if not group then return no_group() end
    book_group(G, group)
    if group.dead_letters == '' then return drop_expired(G, group) end
    local buried = 0
    if written ~= '' and written == string.match(group.burying, '^%d+') then
      buried = note_buried(G, group, written_at)
    end
    if group.burying == '' then
      local parts, room = {}, math.min(most, group.ordered and STEP_RANGES or most)
      for _, range in ipairs(waiting_ranges(G, STEP_RANGES)) do
        if room <= 0 then break end
        local last = math.min(range.last, range.first + room - 1)
        room = room - (last - range.first + 1)
        parts[#parts + 1] = table.concat({ digits(range.first), digits(last), digits(range.attempt) }, ':')
      end
      if #parts > 0 then
        local number = next_burial(G)
        change(group, 'burials', number)
        change(group, 'burying', digits(number) .. ' ' .. table.concat(parts, ','))
        change(group, 'grave', group.dead_letters)
      end
    end
    save_group(G, group)
    if buried > 0 and group.ordered then serve(K, name, stream) end
    if group.burying == '' then return { buried, 0, {}, '' } end
    local ranges = {}
    for first, last, attempt in string.gmatch(group.burying, '(%d+):(%d+):(%d+)') do
      local n = #ranges
      ranges[n + 1], ranges[n + 2], ranges[n + 3] = tonumber(first), tonumber(last), tonumber(attempt)
    end
    return { buried, tonumber(string.match(group.burying, '^%d+')), ranges, group.dead_letters }
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_group_dead: which dead letters are neither redriven nor discarded.
  KEYS   1 the stream
  ARGV   1 group   2 how many ranges, 1000 at most   3 offset among the dead letters to begin from, 0 for all
  Reply  { stream of the dead letters or '', { offset in it, first, last, attempt, ... } }
         error HW_NO_GROUP
]]
redis.register_function{
  function_name = 'hw_group_dead',
  callback = function(keys, args)
    local K, name, most, from = keys[1], args[1], math.min(tonumber(args[2]), 1000), args[3]
    local G = group_key(K, name)
    if not load_group(G, load_stream(K)) then return no_group() end
    local facts = {}
    local found = redis.call('ZRANGE', G .. ':dead', from, '+inf', 'BYSCORE', 'LIMIT', 0, most)
    for _, member in ipairs(found) do
      for number in string.gmatch(member, '%d+') do facts[#facts + 1] = tonumber(number) end
    end
    return { redis.call('HGET', G, 'grave') or '', facts }
  end,
  flags = { 'no-writes' },
}

-- Orders ranges. A message that died twice, as after a seek, has two letters: it is in one range.
local function without_repeats(ranges)
  table.sort(ranges, function(a, b) return a.first < b.first end)
  local joined = {}
  for _, range in ipairs(ranges) do
    local before = joined[#joined]
    if before and range.first <= before.last then
      before.last = math.max(before.last, range.last)
    else
      joined[#joined + 1] = range
    end
  end
  return joined
end

-- Plans what becomes pending of messages that are redriven; what a seek made new again is handed out
-- by itself. letters: ranges of messages, in order.
-- Returns ranges that become pending; ranges that are pending again and go; and what comes in their place.
local function plan_back(G, group, letters, now)
  local new, old, instead = {}, {}, {}
  -- The range that was cut last begins here, and this is left of it behind the cut.
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

--[[
  hw_group_redrive: have dead letters redelivered by the group, at once, with a fresh count of attempts.
  A message that the log no longer holds stays among the dead letters.
  KEYS   1 the stream
  ARGV   1 group   2 how many messages at most   3 offset among the dead letters to go on from, 0 to begin
  Reply  { messages given back, messages left because the log has evicted them,
           offset among the dead letters to go on from or -1 at the end }
         error HW_NO_GROUP
  Cost   O(STEP_RANGES · log pending ranges) in one call
]]
redis.register_function{
  function_name = 'hw_group_redrive',
  callback = function(keys, args)
    local K, name, room, from = keys[1], args[1], tonumber(args[2]), args[3]
    local G, stream, now = group_key(K, name), load_stream(K), server_ms()
    local group = open_group(G, stream)
    if not group then return no_group() end
    book_group(G, group)
    load_counts(G, group)
    local back, gone, place, lowest = 0, 0, -1, nil
    local members, stay, letters = {}, {}, {}
    local found = redis.call('ZRANGE', G .. ':dead', from, '+inf', 'BYSCORE', 'LIMIT', 0, STEP_RANGES)
    for i, member in ipairs(found) do
      if room <= 0 then break end
      local at, first, last, attempt = string.match(member, '^(%d+):(%d+):(%d+):(%d+)$')
      at, first, last = tonumber(at), tonumber(first), tonumber(last)
      if i == STEP_RANGES then place = at + last - first + 1 end
      if first < stream.first then gone = gone + math.min(last, stream.first - 1) - first + 1 end
      if last >= stream.first then
        members[#members + 1] = member
        if first < stream.first then
          dead_words(stay, at, first, stream.first - 1, attempt)
          at, first = at + stream.first - first, stream.first
        end
        local stop = math.min(last, first + room - 1)
        if stop < last then dead_words(stay, at + stop - first + 1, stop + 1, last, attempt) end
        lowest = math.min(lowest or first, first)
        letters[#letters + 1] = { first = first, last = stop }
        room, back = room - (stop - first + 1), back + stop - first + 1
      end
    end
    letters = without_repeats(letters)
    if back > 0 then
      local new, old, instead = plan_back(G, group, letters, now)
      lower_position(K, name, lowest)
      redis.call('ZREM', G .. ':dead', unpack(members))
      if stay[1] then add_members(G .. ':dead', stay) end
      change(group, 'buried', group.buried - back)
      -- Their letters are gone: from here on nothing raises.
      if new[1] then replace_ranges(G, group, {}, new) end
      if old[1] then afterwards(replace_ranges, G, group, old, instead) end
    end
    save_group(G, group)
    for _, range in ipairs(letters) do failures.forget(G, range.first, range.last) end
    if back > 0 then serve(K, name, stream, now) end
    return { back, gone, place }
  end,
  flags = { 'allow-oom' },
}

-- Returns the dead letters that lie at an offset among them, with the stored member; nil for none.
local function letters_at(G, at)
  local found = redis.call('ZRANGE', G .. ':dead', digits(at), '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 1)
  local start, first, last, attempt = string.match(found[1] or '', '^(%d+):(%d+):(%d+):(%d+)$')
  if not start then return nil end
  local letters = {
    member = found[1], at = tonumber(start), first = tonumber(first), last = tonumber(last), attempt = attempt,
  }
  return letters.at + letters.last - letters.first >= at and letters or nil
end

-- Plans to take letters out of where they lie; words: offset among the dead letters, offset in the stream,
-- ... in ascending order, from a place on. A letter that is not of that message stays.
-- Returns members that go, what stays of them, and the messages.
local function plan_named(G, words, from, room)
  local members, stay, gone, left = {}, {}, {}, nil
  local function keep(letters, last)
    if letters.first <= last then dead_words(stay, letters.at, letters.first, last, letters.attempt) end
  end
  for i = from, #words, 2 do
    if #gone == room then break end
    local at, origin = tonumber(words[i]), tonumber(words[i + 1])
    if not left or at > left.at + left.last - left.first then
      if left then keep(left, left.last) end
      left = letters_at(G, at)
      if left then members[#members + 1] = left.member end
    end
    if left and left.at <= at and left.first + at - left.at == origin then
      keep(left, origin - 1)
      gone[#gone + 1] = { first = origin, last = origin }
      left = { at = at + 1, first = origin + 1, last = left.last, attempt = left.attempt }
    end
  end
  if left then keep(left, left.last) end
  return members, stay, gone
end

-- Plans the same for the oldest letters.
local function plan_oldest(G, room)
  local members, stay, gone = {}, {}, {}
  for _, member in ipairs(redis.call('ZRANGE', G .. ':dead', 0, STEP_RANGES - 1)) do
    if room <= 0 then break end
    local at, first, last, attempt = string.match(member, '^(%d+):(%d+):(%d+):(%d+)$')
    at, first, last = tonumber(at), tonumber(first), tonumber(last)
    local stop = math.min(last, first + room - 1)
    members[#members + 1] = member
    if stop < last then dead_words(stay, at + stop - first + 1, stop + 1, last, attempt) end
    gone[#gone + 1] = { first = first, last = stop }
    room = room - (stop - first + 1)
  end
  return members, stay, gone
end

--[[
  hw_group_discard: forget dead letters. What they hold stays in the stream of the dead letters, whose
  retention removes it.
  KEYS   1 the stream
  ARGV   1 group   2 how many messages at most
         3.. offset among the dead letters, offset in the stream that it came from, ... in ascending order;
             none: the oldest
  Reply  { messages forgotten, 1 when another call has more to do }
         error HW_NO_GROUP
  Cost   O(STEP_RANGES · log dead letters) in one call
]]
redis.register_function{
  function_name = 'hw_group_discard',
  callback = function(keys, args)
    local K, name, room, named = keys[1], args[1], tonumber(args[2]), args[3]
    local G = group_key(K, name)
    local group = open_group(G, load_stream(K))
    if not group then return no_group() end
    load_counts(G, group)
    local members, stay, gone
    if named then
      members, stay, gone = plan_named(G, args, 3, room)
    else
      members, stay, gone = plan_oldest(G, room)
    end
    local messages = 0
    for _, range in ipairs(gone) do messages = messages + size_of(range) end
    if messages > 0 then
      redis.call('ZREM', G .. ':dead', unpack(members))
      if stay[1] then add_members(G .. ':dead', stay) end
      change(group, 'buried', group.buried - messages)
    end
    save_group(G, group)
    for _, range in ipairs(gone) do failures.forget_causes(G, range.first, range.last) end
    return { messages, not named and #members == STEP_RANGES and messages < room and 1 or 0 }
  end,
  flags = { 'allow-oom' },
}

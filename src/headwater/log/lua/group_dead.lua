--[[
  hw_group_bury: move expired messages to the dead letters, which are a stream of their own.
  That stream may be in another slot, so this takes two steps, which any client may repeat: a batch is
  numbered and noted; the client that gets it writes it with (producer, number) and then reports it as
  written.

  KEYS   1 the stream
  ARGV   1 group   2 number of the batch that was written, or ''   3 its first offset among the dead letters
         4 messages in a batch at most; fewer when they have 16 MiB
         5 the highest number that the stream of the dead letters knows; a batch with a lower one, as a clock that was
           set back gives it, is numbered again; may be left out
  Reply  { messages that became dead letters by this call, number of the batch to write now,
           { first, last, attempt, ... } of it ({} when there is none), stream of the dead letters }
         error HW_NO_GROUP

  A message that was acknowledged after its batch was noted is done: its letter is in the stream of the
  dead letters, but does not count and is never redriven.
  G field "burying": "number first:last:attempt,..."; G:dead zset: score: offset among the dead letters;
  member: "offset:first:last:attempt"; G field "grave": the stream of all of them
]]
-- Returns the ranges that wait for the dead letters, `room` at most; entries without a range are dropped.
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

-- Dead letters were turned off after these messages had expired: they are dropped like any others.
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

-- What a batch has at most, so that it can be written as one: its bytes, and those that they have unpacked.
local BURIED_BYTES = '16777216:16777216'

-- Returns the ranges to bury next, as text: up to `room` messages, and as many bytes as one write may have.
local function next_batch(K, G, stream, room)
  local parts, bag = {}, new_bag(stream, BURIED_BYTES, nil)
  -- Only their size matters, as for a blocked member.
  bag.waiter = ''
  for _, range in ipairs(waiting_ranges(G, STEP_RANGES)) do
    if room <= 0 or bag.bytes >= bag.limit then break end
    local first, last = math.max(range.first, stream.first), math.min(range.last, range.first + room - 1)
    if first <= last then last = math.max(collect(K, stream, first, last, math.huge, bag), range.first) end
    room = room - (last - range.first + 1)
    parts[#parts + 1] = table.concat({ digits(range.first), digits(last), digits(range.attempt) }, ':')
    bag.entries = {}
  end
  return parts
end

-- Numbers are higher than those of any removed group of this name: the stream of the dead letters outlives
-- groups, and remembers the sequences of its producers.
local function next_burial(G)
  return math.max(tonumber(redis.call('HGET', G, 'burials') or 0) + 1, server_us())
end

-- A batch is in the stream of the dead letters, from `at` on. Returns how many of its messages were still
-- pending, and so are dead letters now.
local function note_buried(G, group, at)
  local old, words, rest, kept, before = {}, {}, {}, {}, group.pending
  for first, last, attempt in string.gmatch(group.burying, '(%d+):(%d+):(%d+)') do
    local place = at - tonumber(first)
    local gone, left, parts = plan_cuts(G, { first, last }, 1)
    for _, range in ipairs(gone) do old[#old + 1] = range end
    for _, range in ipairs(left) do rest[#rest + 1] = range end
    for _, part in ipairs(parts) do dead_ranges.add(words, place + part.first, part.first, part.last, attempt) end
    kept[#kept + 1] = { tonumber(first), tonumber(last) }
    at = at + tonumber(last) - tonumber(first) + 1
  end
  if old[1] then
    load_counts(G, group)
    group.burying_now = true
    replace_ranges(G, group, old, rest)
    dead_ranges.put(G, words)
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
    local highest = tonumber(args[5] or 0)
    local G, stream = group_key(K, name), load_stream(K)
    local group = open_group(G, stream)
    if not group then return no_group() end
    book_group(G, group)
    if group.dead_letters == '' then return drop_expired(G, group) end
    local buried = 0
    if written ~= '' and written == string.match(group.burying, '^%d+') then
      buried = note_buried(G, group, written_at)
    end
    local number = tonumber(string.match(group.burying, '^%d+'))
    if number and number < highest then
      number = highest + 1
      change(group, 'burials', number)
      change(group, 'burying', digits(number) .. string.match(group.burying, ' .*$'))
    end
    if group.burying == '' then
      local parts = next_batch(K, G, stream, math.min(most, group.noted and STEP_RANGES or dead_ranges.longest))
      if #parts > 0 then
        number = next_burial(G)
        change(group, 'burials', number)
        change(group, 'burying', digits(number) .. ' ' .. table.concat(parts, ','))
        change(group, 'grave', group.dead_letters)
      end
    end
    save_group(G, group)
    if buried > 0 and (group.noted or group.limits) then serve(K, name, stream) end
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
  hw_group_dead: list dead letters that are neither redriven nor discarded.
  KEYS   1 the stream
  ARGV   1 group   2 how many ranges, 1000 at most   3 offset among the dead letters to begin from, 0 for all
         4 'newest': the newest first, from the newest or from those before the given offset on
  Reply  { stream of the dead letters or '', { offset in it, first, last, attempt, ... },
           offset behind the newest of all, 0 without any }
         error HW_NO_GROUP
]]
redis.register_function{
  function_name = 'hw_group_dead',
  callback = function(keys, args)
    local K, name, most, from = keys[1], args[1], math.min(tonumber(args[2]), 1000), tonumber(args[3])
    local newest, G = args[4] == 'newest', group_key(K, name)
    if not load_group(G, load_stream(K)) then return no_group() end
    local facts, found = {}, nil
    -- The letters that begin before the given place and end after it.
    local across = from > 0 and dead_ranges.covering(G, from)
    if newest then
      local before = from > 0 and '(' .. digits(from) or '+inf'
      found = redis.call('ZRANGE', G .. ':dead', before, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, most)
    else
      if across and across.at < from then
        facts = { from, across.first + from - across.at, across.last, tonumber(across.attempt) }
      end
      found = redis.call('ZRANGE', G .. ':dead', digits(from), '+inf', 'BYSCORE', 'LIMIT', 0, most - #facts / 4)
    end
    for _, member in ipairs(found) do
      for number in string.gmatch(member, '%d+') do facts[#facts + 1] = tonumber(number) end
    end
    if newest and across and across.at < from then facts[3] = across.first + from - across.at - 1 end
    return { redis.call('HGET', G, 'grave') or '', facts, dead_ranges.end_of(G) }
  end,
  flags = { 'no-writes' },
}

--[[
  hw_group_ack: acknowledge messages, which are done then.
  KEYS   1 the stream
  ARGV   1 group   2.. first offset, last offset, first offset, last offset, ... in ascending order
  Reply  { how many messages were pending until now; messages that were never delivered, or are done
           already, do not count and do not change,
           offset from which on nothing was done yet, because there is too much for one call; or -1 }
         error HW_NO_GROUP
  Cost   O(STEP_RANGES · log pending ranges) in one call
]]
redis.register_function{
  function_name = 'hw_group_ack',
  callback = function(keys, args)
    local K, name = keys[1], args[1]
    local G, stream = group_key(K, name), load_stream(K)
    local group = open_group(G, stream)
    if not group then return no_group() end
    book_group(G, group)
    local acked, going_on = end_ranges(G, group, args, 2)
    save_group(G, group)
    if acked > 0 then serve(K, name, stream) end
    return { acked, going_on }
  end,
  flags = { 'allow-oom' },
}

-- Ends the pending messages among the offsets in args that no member has. Returns the same as end_ranges.
local function skip_ranges(G, group, args, from, now)
  local before = group.pending
  local old, rest, parts, going_on = plan_cuts(G, args, from, false, lanes.budget(G, group))
  for _, part in ipairs(parts) do
    if part.waits or part.attempt > 0 and part.due > now and part.due ~= PARKED then rest[#rest + 1] = part end
  end
  if old[1] then replace_ranges(G, group, old, rest) end
  return before - group.pending, going_on
end

--[[
  hw_group_skip: acknowledge offsets that compaction emptied and that no member has: those that were not delivered
  yet, or are due again. A member that was given a message before it was compacted acknowledges that itself.
  A hole stays a hole, so any client may do so at any time, as long as the stream is the same one.
  KEYS   1 the stream
  ARGV   1 group   2 `created` as read   3.. first offset, last offset, ... in ascending order
  Reply  { how many offsets were pending until now, offset from which on nothing was done yet or -1 }
         error HW_NO_GROUP
]]
redis.register_function{
  function_name = 'hw_group_skip',
  callback = function(keys, args)
    local K, name, created = keys[1], args[1], args[2]
    local G, stream = group_key(K, name), load_stream(K)
    local group = open_group(G, stream)
    if not group then return no_group() end
    if stream.created ~= created then return { 0, -1 } end
    book_group(G, group)
    local ended, going_on = skip_ranges(G, group, args, 3, server_ms())
    for i = 3, #args, 2 do
      local first, last = tonumber(args[i]), tonumber(args[i + 1])
      if going_on ~= -1 then last = math.min(last, going_on - 1) end
      if first <= group.next and group.next <= last then change(group, 'next', last + 1) end
    end
    save_group(G, group)
    if ended > 0 then serve(K, name, stream) end
    return { ended, going_on }
  end,
  flags = { 'allow-oom' },
}

-- Returns whether a range is in one that was recorded as a gap.
local function is_known_gap(group, first, last)
  for low, high in string.gmatch(group.gaps, '(%d+)-(%d+)') do
    if tonumber(low) <= first and last <= tonumber(high) then return true end
  end
  return false
end

--[[
  hw_group_missing: count offsets of which a reader found neither node nor entry as missed, and acknowledge
  them. A range that is counted already is not counted again: several members may find it.
  KEYS   1 the stream
  ARGV   1 group   2 `created` as read, or ''   3.. first offset, last offset, ... in ascending order
  Reply  { how many offsets were pending until now, offset from which on nothing was done yet or -1 }
         error HW_NO_GROUP
]]
redis.register_function{
  function_name = 'hw_group_missing',
  callback = function(keys, args)
    local K, name, created = keys[1], args[1], args[2]
    local G, stream = group_key(K, name), load_stream(K)
    local group = open_group(G, stream)
    if not group then return no_group() end
    if created ~= '' and stream.created ~= created then return { 0, -1 } end
    book_group(G, group)
    local ended, going_on = end_ranges(G, group, args, 3)
    load_counts(G, group)
    for i = 3, #args, 2 do
      local first, last = tonumber(args[i]), math.min(tonumber(args[i + 1]), stream.last)
      if going_on ~= -1 then last = math.min(last, going_on - 1) end
      if first <= last and not is_known_gap(group, first, last) then record_gap(group, first, last) end
      note_missing(K, stream, first, last)
    end
    save_group(G, group)
    if ended > 0 then serve(K, name, stream) end
    return { ended, going_on }
  end,
  flags = { 'allow-oom' },
}

-- No member has a message that waits to be buried or for others of its tag: it cannot be moved.
local function is_waiting_range(range)
  return range.waits or range.due == PARKED
end

--[[
  hw_group_postpone: redeliver pending messages at another time (nack, extend).
  KEYS   1 the stream
  ARGV   1 group   2 ms from now, with a '+' before them when the member keeps the messages (extend)
         3.. first offset, last offset, ... in ascending order
  Reply  { how many messages are pending and were moved, offset from which on nothing was done yet or -1 }
         error HW_NO_GROUP
  Cost   O(STEP_RANGES · log pending ranges) in one call
]]
redis.register_function{
  function_name = 'hw_group_postpone',
  callback = function(keys, args)
    local K, name, delay = keys[1], args[1], args[2]
    local delay_ms, stays = tonumber(delay), string.sub(delay, 1, 1) == '+'
    local G, stream, now = group_key(K, name), load_stream(K), server_ms()
    local group = open_group(G, stream)
    if not group then return no_group() end
    book_group(G, group)
    local old, rest, parts, going_on = plan_cuts(G, args, 3, false, lanes.budget(G, group))
    -- A range that is moved as a whole only gets another deadline; one that is cut is replaced by its
    -- parts.
    local cut, moved, deadlines = {}, 0, {}
    for _, range in ipairs(rest) do cut[range.member] = true end
    local going, coming, spans = {}, {}, {}
    for _, range in ipairs(old) do
      if cut[range.member] and not is_waiting_range(range) then going[#going + 1] = range end
    end
    for _, part in ipairs(rest) do
      if not is_waiting_range(part) then coming[#coming + 1] = part end
    end
    for _, part in ipairs(parts) do
      if not is_waiting_range(part) then
        moved = moved + size_of(part)
        part.due = now + delay_ms
        spans[#spans + 1] = { part.first, part.last }
        if cut[part.member] then
          coming[#coming + 1] = part
        else
          local due = part.expire == NEVER and part.due or math.min(part.due, part.expire)
          local n = #deadlines
          deadlines[n + 1], deadlines[n + 2] = digits(due), digits(part.first)
        end
      end
    end
    if stays then flights.hold(G, group, spans, now + delay_ms) end
    lanes.set_time(G, group, spans, (stays and 1 or -1) * (now + delay_ms))
    if deadlines[1] then set_deadlines(G, group, deadlines) end
    if going[1] then replace_ranges(G, group, going, coming) end
    if not stays then flights.land(G, group, spans) end
    save_group(G, group)
    if moved > 0 then serve(K, name, stream, now) end
    return { moved, going_on }
  end,
  flags = { 'allow-oom' },
}

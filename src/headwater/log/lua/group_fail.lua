--[[
  hw_group_fail: report failed attempts; each message is redelivered after its own delay, or given up.
  A message that is given up waits for hw_group_bury and is not delivered any more. A report counts only
  while the message is pending in the attempt that failed, so a late report does not affect a later attempt.

  KEYS   1 the stream
  ARGV   1 group   2.. for each message, in ascending order, 64 at most: offset, attempt or '' for any,
         ms until it is redelivered or -1 to give it up, ms that the member had it or '', error ("type\ntext")
  Reply  how many messages were changed
         error HW_NO_GROUP, HW_NO_LETTERS (a message is to be given up, and the group keeps no dead letters)
  Cost   O(messages · log pending ranges)
]]
redis.register_function{
  function_name = 'hw_group_fail',
  callback = function(keys, args)
    local K, name = keys[1], args[1]
    local G, stream, now = group_key(K, name), load_stream(K), server_ms()
    local group = open_group(G, stream)
    if not group then return no_group() end
    local reports, offsets = {}, {}
    for i = 2, #args, 5 do
      local held, delay_ms = tonumber(args[i + 3]), tonumber(args[i + 2])
      if delay_ms < 0 and group.dead_letters == '' then return redis.error_reply('HW_NO_LETTERS') end
      reports[tonumber(args[i])] = {
        attempt = tonumber(args[i + 1]), delay_ms = delay_ms, since = held and digits(now - held) or '',
        error = args[i + 4],
      }
      offsets[#offsets + 1], offsets[#offsets + 2] = args[i], args[i]
    end
    book_group(G, group)
    local old, new, parts = plan_cuts(G, offsets, 1)
    local failed, given_up = {}, {}
    for _, part in ipairs(parts) do
      local report = reports[part.first]
      report.attempt = report.attempt or part.attempt
      local parked = part.due == PARKED and report.delay_ms >= 0
      if not part.waits and not parked and report.attempt == part.attempt then
        part.due = now + math.max(report.delay_ms, 0)
        failed[#failed + 1] = part
        if report.delay_ms < 0 then given_up[#given_up + 1] = digits(part.first) end
      end
      new[#new + 1] = part
    end
    if failed[1] then replace_ranges(G, group, old, new) end
    flights.land(G, group, flights.spans_of(failed))
    for _, part in ipairs(failed) do lanes.set_time(G, group, { { part.first, part.last } }, -part.due) end
    save_group(G, group)
    failures.trim(G)
    for _, part in ipairs(failed) do
      local report = reports[part.first]
      failures.note(G, part.first, report, report.delay_ms < 0)
    end
    -- A message that could not be marked is redelivered at once, as if there had been no report.
    if given_up[1] then mark_expired(G, given_up) end
    if failed[1] then serve(K, name, stream, now) end
    return #failed
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_group_release: return messages untried: they are redelivered at once, and the attempt does not count.
  KEYS   1 the stream
  ARGV   1 group   2.. first offset, last offset, ... in ascending order
  Reply  { how many messages are pending and were returned, offset from which on nothing was done yet or -1 }
         error HW_NO_GROUP
  Cost   O(STEP_RANGES · log pending ranges) in one call
]]
redis.register_function{
  function_name = 'hw_group_release',
  callback = function(keys, args)
    local K, name = keys[1], args[1]
    local G, stream, now = group_key(K, name), load_stream(K), server_ms()
    local group = open_group(G, stream)
    if not group then return no_group() end
    book_group(G, group)
    local old, new, parts, going_on = plan_cuts(G, args, 2, false, lanes.budget(G, group))
    local returned, back = 0, {}
    for _, part in ipairs(parts) do
      if not part.waits and part.due ~= PARKED then
        back[#back + 1] = part
        part.due, part.attempt = now, math.max(part.attempt - 1, 0)
        returned = returned + size_of(part)
      end
      new[#new + 1] = part
    end
    if returned > 0 then replace_ranges(G, group, old, new) end
    flights.land(G, group, flights.spans_of(back))
    lanes.set_time(G, group, flights.spans_of(back), 0)
    save_group(G, group)
    if returned > 0 then serve(K, name, stream, now) end
    return { returned, going_on }
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_group_causes: get the errors of messages that are dead letters.
  KEYS   1 the stream
  ARGV   1 group   2.. first offset, last offset, ... in the stream that they came from, 1000 messages at most
  Reply  { "offset:first delivered (ms) or nothing:type\ntext" of each that is known }
]]
redis.register_function{
  function_name = 'hw_group_causes',
  callback = function(keys, args)
    local G, causes = group_key(keys[1], args[1]), {}
    for i = 2, #args, 2 do
      for _, cause in ipairs(redis.call('ZRANGE', G .. ':causes', args[i], args[i + 1], 'BYSCORE')) do
        causes[#causes + 1] = cause
      end
    end
    return causes
  end,
  flags = { 'no-writes' },
}

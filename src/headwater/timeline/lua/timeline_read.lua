--[[
  hw_timeline_select: get a page of each of some sets, newest first; equal scores by member, descending.
  A page begins after the start and ends before the stop, which need not be elements of the set. Only
  the newest elements of a set are in any page.
  KEYS   K+ of each timeline to select from, K- for its tombstones; then the layout
  ARGV   1 how many to skip   2 how many at most   3 score of the start, '' for none
         4 its member   5 score of the stop, '' for none   6 its member
         7 how many elements of a set are in any page   8 epoch of the layout
  Reply  for each set { member, score, ... }
  Cost   for each set O(log size + elements), with a start or a stop O(log² size + elements)
]]
redis.register_function{
  function_name = 'hw_timeline_select',
  callback = function(keys, args)
    local offset, limit, start_score, start_member = tonumber(args[1]), tonumber(args[2]), args[3], args[4]
    local stop_score, stop_member, shown = args[5], args[6], tonumber(args[7])
    local refused = timeline.fence(keys, args)
    if refused then return refused end
    local pages = {}
    for i, set in ipairs(keys) do
      local first = offset
      if start_score ~= '' then first = first + timeline.newer(set, start_score, start_member, true) end
      local stop = math.min(first + limit, shown)
      if stop_score ~= '' then stop = math.min(stop, timeline.newer(set, stop_score, stop_member, false)) end
      pages[i] = first < stop and redis.call('ZRANGE', set, first, stop - 1, 'REV', 'WITHSCORES') or {}
    end
    return pages
  end,
  flags = { 'no-writes' },
}

--[[
  hw_timeline_score: get the state of members: the score of their newest operation, and its kind.
  KEYS   1 K+   2 K-   3 the next K+   ...   then the layout
  ARGV   1 how many elements a key keeps   2.. for each key: how many members, then the members; then the
         epoch of the layout
  Reply  for each key { score of the oldest element it keeps, its member, then for each member its
         score in K+ and its score in K- }; '' stands for none, and a key with room has no oldest
  Cost   O(members · log size)
]]
redis.register_function{
  function_name = 'hw_timeline_score',
  callback = function(keys, args)
    local most, at, known = tonumber(args[1]), 2, {}
    local refused = timeline.fence(keys, args)
    if refused then return refused end
    for k = 1, #keys, 2 do
      local size = timeline.size(keys[k], keys[k + 1])
      local floor = timeline.floor(keys[k], keys[k + 1], size, most) or { '', '' }
      local found = { floor[2], floor[1] }
      local count = tonumber(args[at])
      -- Lua unpacks fewer than 8000 values.
      for first = at + 1, at + count, 2 * timeline.PAIRS do
        local last = math.min(first + 2 * timeline.PAIRS - 1, at + count)
        local inserted = redis.call('ZMSCORE', keys[k], unpack(args, first, last))
        local deleted = redis.call('ZMSCORE', keys[k + 1], unpack(args, first, last))
        for i = 1, last - first + 1 do
          found[#found + 1] = inserted[i] or ''
          found[#found + 1] = deleted[i] or ''
        end
      end
      at = at + count + 1
      known[#known + 1] = found
    end
    return known
  end,
  flags = { 'no-writes' },
}

--[[
  Applies operations of one kind to a key: args[first] to args[last] are score, member, ... `own`
  is the set of that kind, `other` the opposite one. Adds to tally: applied, unchanged, rejected.
]]
function timeline.apply(own, other, args, first, last, is_delete, floor, horizon, tally)
  local members = {}
  for i = first + 1, last, 2 do members[#members + 1] = args[i] end
  local rivals = redis.call('ZMSCORE', other, unpack(members))
  local winners, beaten, old, rejected = {}, {}, {}, 0
  for i = first, last, 2 do
    local score, member = args[i], args[i + 1]
    local number, rival = tonumber(score), rivals[(i - first) / 2 + 1]
    if horizon and number < horizon then
      rejected = rejected + 1
    elseif floor and timeline.older(score, member, floor[2], floor[1]) then
      if not rival then old[#old + 1] = member end
    elseif not rival then
      winners[#winners + 1], winners[#winners + 2] = score, member
    elseif number > tonumber(rival) or (is_delete and number == tonumber(rival)) then
      beaten[#beaten + 1] = member
      winners[#winners + 1], winners[#winners + 2] = score, member
    end
  end
  if #old > 0 then
    -- Everything kept is above the floor, so an existing member has a higher score.
    for _, known in ipairs(redis.call('ZMSCORE', own, unpack(old))) do
      if not known then rejected = rejected + 1 end
    end
  end
  local changed = #winners > 0 and redis.call('ZADD', own, 'GT', 'CH', unpack(winners)) or 0
  if #beaten > 0 then redis.call('ZREM', other, unpack(beaten)) end
  tally[1], tally[3] = tally[1] + changed, tally[3] + rejected
  tally[2] = tally[2] + #members - changed - rejected
end

--[[
  Applies inserts and deletes to a key of a given size: args[at] on are score, member of each insert, then
  of each delete. The key is not trimmed yet.
]]
function timeline.merge(adds, deletes, size, inserts, removals, args, at, most, horizon, tally)
  local floor = timeline.floor(adds, deletes, size, most)
  for kind = 1, 2 do
    local own, other, count = adds, deletes, inserts
    if kind == 2 then own, other, count = deletes, adds, removals end
    local stop = at + 2 * count
    while at < stop do
      local last = math.min(at + 2 * timeline.PAIRS, stop) - 1
      timeline.apply(own, other, args, at, last, kind == 2, floor, horizon, tally)
      at = last + 1
    end
  end
end

--[[
  hw_timeline_write: merge operations into timelines: inserts, deletes and repairs.
  Elements with a score below the horizon are removed first, and operations below it are rejected; so are
  operations that are older than everything that a full key keeps. A repeat changes nothing, and completes
  what a failed call has left. A call removes at most 1000 elements plus one for each operation; a key that has
  more to remove shows them until a later call continues.
  KEYS   1 K+   2 K-   3 the next K+   ...   then the layout
  ARGV   1 how many elements a key keeps, including deleted ones   2 horizon, '' for none
         3.. for each key: how many inserts, how many deletes, then score, member of each insert, then
         of each delete; then the epoch of the layout
  Reply  { applied, unchanged, rejected, trimmed, forgotten }: the first three count operations, the
         others removed elements: over the size, below the horizon
  Cost   O(operations · log size), and O(log size) for each element that is removed
]]
redis.register_function('hw_timeline_write', function(keys, args)
  local most, horizon_score = tonumber(args[1]), args[2]
  local horizon = tonumber(horizon_score)
  local refused = timeline.fence(keys, args)
  if refused then return refused end
  local tally = { 0, 0, 0, 0, 0 }
  local at, spare = 3, timeline.REMOVED
  for k = 1, #keys, 2 do
    local adds, deletes = keys[k], keys[k + 1]
    local inserts, removals = tonumber(args[at]), tonumber(args[at + 1])
    at = at + 2
    local allowed = spare + inserts + removals
    if horizon then
      local forgotten = timeline.forget(adds, deletes, horizon_score, allowed)
      tally[5], allowed = tally[5] + forgotten, allowed - forgotten
    end
    local inserted, deleted = redis.call('ZCARD', adds), redis.call('ZCARD', deletes)
    local room = inserted + inserts <= most and 0 < inserts and inserts <= timeline.PAIRS
    if room and deleted == 0 and removals == 0 and not horizon then
      -- There are no tombstones: the server's own comparison, a higher score wins, is the whole rule.
      local changed = redis.call('ZADD', adds, 'GT', 'CH', unpack(args, at, at + 2 * inserts - 1))
      tally[1], tally[2] = tally[1] + changed, tally[2] + inserts - changed
    else
      local size = inserted + deleted
      timeline.merge(adds, deletes, size, inserts, removals, args, at, most, horizon, tally)
      local trimmed = timeline.trim(adds, deletes, most, allowed)
      tally[4], allowed = tally[4] + trimmed, allowed - trimmed
    end
    spare = math.min(spare, allowed)
    at = at + 2 * (inserts + removals)
  end
  return tally
end)

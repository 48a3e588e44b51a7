--[[
  Apply some operations of one kind to a key: args[first] to args[last] are score, member, ... `own`
  is the set of that kind, `other` the opposite one, which is empty unless `contested`. Adds to tally:
  applied, unchanged, rejected.
]]
function timeline.apply(own, other, contested, args, first, last, is_delete, floor, horizon, tally)
  local pairs_given = (last - first + 1) / 2
  local rivals = {}
  if contested then
    local members = {}
    for i = first + 1, last, 2 do members[#members + 1] = args[i] end
    rivals = redis.call('ZMSCORE', other, unpack(members))
  elseif not floor and not horizon then
    -- Nothing to lose against: the server's own rule, a higher score wins, is all of the law.
    local changed = redis.call('ZADD', own, 'GT', 'CH', unpack(args, first, last))
    tally[1], tally[2] = tally[1] + changed, tally[2] + pairs_given - changed
    return
  end
  local winners, beaten, rejected = {}, {}, 0
  for i = first, last, 2 do
    local score, member = args[i], args[i + 1]
    local number, rival = tonumber(score), rivals[(i - first) / 2 + 1]
    if horizon and number < horizon then
      rejected = rejected + 1
    elseif floor and timeline.older(score, member, floor[2], floor[1]) then
      -- What is kept is above the floor, so a member that is there has a higher score.
      if not rival and not redis.call('ZSCORE', own, member) then rejected = rejected + 1 end
    elseif not rival then
      winners[#winners + 1], winners[#winners + 2] = score, member
    elseif number > tonumber(rival) or (is_delete and number == tonumber(rival)) then
      beaten[#beaten + 1] = member
      winners[#winners + 1], winners[#winners + 2] = score, member
    end
  end
  if #beaten > 0 then redis.call('ZREM', other, unpack(beaten)) end
  local changed = #winners > 0 and redis.call('ZADD', own, 'GT', 'CH', unpack(winners)) or 0
  tally[1], tally[3] = tally[1] + changed, tally[3] + rejected
  tally[2] = tally[2] + pairs_given - changed - rejected
end

--[[
  hw_timeline_write: merge operations into timelines, inserts and deletes alike; a repair is no
  other thing. What a score below the horizon has is forgotten first, and such operations are
  rejected; so are those that are older than all that a full key keeps. A repeat changes nothing.
  KEYS   1 K+   2 K-   3 the next K+   ...   then the layout
  ARGV   1 most elements of a key   2 horizon, '' for none   3.. for each key: how many inserts, how
         many deletes, then score, member of each insert, then of each delete; then the epoch
         of the layout
  Reply  { applied, unchanged, rejected, trimmed, forgotten }: the first three count operations, the
         others elements that went: over the size, below the horizon
  Cost   O(operations · log size), and O(log size) for each element that goes
]]
redis.register_function('hw_timeline_write', function(keys, args)
  local refused = timeline.fence(keys, args)
  if refused then return refused end
  local most, horizon = tonumber(args[1]), tonumber(args[2])
  local tally = { 0, 0, 0, 0, 0 }
  local at = 3
  for k = 1, #keys, 2 do
    local adds, deletes = keys[k], keys[k + 1]
    local counts = { tonumber(args[at]), tonumber(args[at + 1]) }
    at = at + 2
    if horizon then
      for _, set in ipairs({ adds, deletes }) do
        tally[5] = tally[5] + redis.call('ZREMRANGEBYSCORE', set, '-inf', '(' .. args[2])
      end
    end
    local sizes = { redis.call('ZCARD', adds), redis.call('ZCARD', deletes) }
    local size = sizes[1] + sizes[2]
    local floor = timeline.floor(adds, deletes, size, most)
    for kind = 1, 2 do
      local own, other = keys[k + kind - 1], keys[k + 2 - kind]
      local contested = sizes[3 - kind] > 0 or counts[3 - kind] > 0
      local stop = at + 2 * counts[kind]
      while at < stop do
        local last = math.min(at + 2 * timeline.PAIRS, stop) - 1
        timeline.apply(own, other, contested, args, at, last, kind == 2, floor, horizon, tally)
        at = last + 1
      end
    end
    if size + counts[1] + counts[2] > most then
      tally[4] = tally[4] + timeline.trim(adds, deletes, most)
    end
  end
  return tally
end)

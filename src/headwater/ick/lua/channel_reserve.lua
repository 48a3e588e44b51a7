--[[
  hw_channel_reserve: lease a shard and reserve its lowest members, ties by member.
  Members that are already reserved and not committed come first; then dirty members follow until `count`
  are reserved. One place in FAIR goes to the member that has waited longest. The holder may ask again and
  gets the same members, so a lost reply is harmless. An expired lease is taken over with a higher token.
  An empty shard is not leased. One call reserves at most 500 more members.
  KEYS   1 the shard
  ARGV   1 consumer   2 how long the lease lasts, in ms   3 count
  Reply  { token, until, { member, score, ... }, { generation, ... }, ms until the time of the next
           member, or -1, what is left to do }. The token is 0 when there is nothing, or when another
         consumer holds the shard, until the given ms. Left to do: 0 nothing; 1 call again to reserve the
         rest; 2 all are reserved, more than 500 or than 4 MiB, and hw_channel_held returns them
         error HW_CLOSED, HW_UNOPENED
  Cost   O(count · log size)
]]
-- How many members one call reserves or returns: each is in several sets.
local CHANNEL_ROWS = 500

-- Chooses up to `room` members to reserve: those that have waited longest, then the lowest. Returns
-- member, score, ..., and whether these are simply the lowest of all.
local function choose(S, shard, room)
  local rows, taken = {}, {}
  local oldest = math.floor((shard.turn + room) / FAIR)
  if oldest > 0 then
    local members = redis.call('ZRANGE', S .. ':since', 0, oldest - 1)
    local scores = #members > 0 and redis.call('ZMSCORE', S .. ':ready', unpack(members)) or {}
    for i, member in ipairs(members) do
      if scores[i] then
        rows[#rows + 1], rows[#rows + 2] = member, scores[i]
        taken[member] = true
      end
    end
  end
  local lowest, among = redis.call('ZRANGE', S .. ':ready', 0, room - 1, 'WITHSCORES'), 0
  oldest = #rows / 2
  for i = 1, #lowest, 2 do
    if taken[lowest[i]] then
      among = among + 1
    elseif #rows < 2 * room then
      rows[#rows + 1], rows[#rows + 2] = lowest[i], lowest[i + 1]
    end
  end
  return rows, among == oldest
end

-- Reserves up to `room` more members under a new generation; returns how many were reserved.
local function reserve_some(S, shard, room)
  local rows, lowest_of_all = choose(S, shard, room)
  if #rows == 0 then return 0 end
  local members, made = {}, {}
  for i = 1, #rows, 2 do
    members[#members + 1] = rows[i]
    made[i], made[i + 1] = rows[i], shard.generation
  end
  shard.turn = (shard.turn + #members) % FAIR
  note_moved(members, 1, 1)
  redis.call('HSET', S .. ':made', unpack(made))
  redis.call('ZADD', S .. ':held', 'LT', unpack(ick_swap(rows)))
  if lowest_of_all then
    redis.call('ZREMRANGEBYRANK', S .. ':ready', 0, #members - 1)
  else
    redis.call('ZREM', S .. ':ready', unpack(members))
  end
  redis.call('ZREM', S .. ':since', unpack(members))
  return #members
end

-- Reserves until there are `count`, or the call has reached its limit; returns how many are reserved, and
-- whether that is all.
local function reserve_up_to(S, shard, count)
  shard.generation = next_by_clock(shard.generation)
  local left = CHANNEL_ROWS
  while true do
    local size = redis.call('ZCARD', S .. ':held')
    local room = math.min(count - size, left)
    if room <= 0 then return size, size >= count end
    local taken = reserve_some(S, shard, room)
    if taken == 0 then return size, true end
    left = left - taken
  end
end

local function reserve_members(S, shard, now, consumer, lease_ms, count)
  ripen(S, now)
  local size, all = reserve_up_to(S, shard, count)
  local next_due = redis.call('ZRANGE', S .. ':later', 0, 0, 'WITHSCORES')[2]
  local due_ms = next_due and math.max(0, tonumber(next_due) - now) or -1
  if size == 0 or count == 0 then return { 0, 0, {}, {}, due_ms, 0 } end
  if shard.holder ~= consumer then shard.token = next_by_clock(shard.token) end
  local till = now + lease_ms
  redis.call('HSET', S, 'token', shard.token, 'holder', consumer, 'until', till,
    'generation', shard.generation, 'turn', shard.turn)
  if not all then return { shard.token, till, {}, {}, due_ms, 1 } end
  if math.min(count, size) > CHANNEL_ROWS then return { shard.token, till, {}, {}, due_ms, 2 } end
  local rows = redis.call('ZRANGE', S .. ':held', 0, count - 1, 'WITHSCORES')
  if ick_too_large(rows) then return { shard.token, till, {}, {}, due_ms, 2 } end
  return { shard.token, till, rows, made_of(S, rows, 1), due_ms, 0 }
end

redis.register_function{
  function_name = 'hw_channel_reserve',
  callback = function(keys, args)
    local consumer, lease_ms, count = args[1], tonumber(args[2]), tonumber(args[3])
    local shard, now = load_shard(keys[1]), server_ms()
    local refused = refused_by(shard.closed, shard.opened)
    if refused then return refused end
    if shard.holder ~= '' and shard.holder ~= consumer and shard.till > now then
      return { 0, shard.till, {}, {}, -1, 0 }
    end
    return on_shard(keys[1], reserve_members, shard, now, consumer, lease_ms, count)
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_channel_held: get some of the reserved members, by score and then by member. Changes nothing.
  KEYS   1 the shard
  ARGV   1 token of the lease   2 rank to begin at   3 how many, 500 at most
  Reply  { { member, score, ... }, { generation, ... } }; fewer once they have 4 MiB
         error HW_LEASE <token> <holder> when another token is in force
]]
redis.register_function{
  function_name = 'hw_channel_held',
  callback = function(keys, args)
    local token, first, count = tonumber(args[1]), tonumber(args[2]), tonumber(args[3])
    local shard, fault = check_token(keys[1], token)
    if not shard then return fault or { {}, {} } end
    local rows = ick_page(keys[1] .. ':held', first, math.min(count, CHANNEL_ROWS))
    return { rows, made_of(keys[1], rows, 1) }
  end,
  flags = { 'no-writes' },
}

--[[
  hw_channel_reserve: lease a shard and hand out its lowest members, ties by member.
  What is reserved and not committed comes first, again; then dirty members follow until `count`
  are reserved, one place in FAIR for who has waited longest. The holder may ask again, and gets
  the same members, so that a lost answer does no harm. A lease that has run out is taken over,
  with a higher token. An empty shard is not leased.
  KEYS   1 the shard
  ARGV   1 consumer   2 how long the lease lasts, in ms   3 count
  Reply  { token, until, { member, score, ... }, { generation, ... }, ms until the next
           member's time has come or -1 }, with token 0 when there is nothing, or when another consumer
         holds the shard: until then is how long
         error HW_CLOSED
  Cost   O(count · log size)
]]
local function take_oldest(S, count, rows)
  if count == 0 then return 0 end
  local members = redis.call('ZRANGE', S .. ':since', 0, count - 1)
  if #members == 0 then return 0 end
  local scores = redis.call('ZMSCORE', S .. ':ready', unpack(members))
  for i, member in ipairs(members) do rows[2 * i - 1], rows[2 * i] = member, scores[i] end
  redis.call('ZREM', S .. ':ready', unpack(members))
  return #members
end

-- Reserve up to `room` more members under a new generation; returns how many were taken.
local function reserve_some(S, shard, room)
  local rows = {}
  local oldest = take_oldest(S, math.floor((shard.turn + room) / FAIR), rows)
  if room > oldest then
    local lowest = redis.call('ZPOPMIN', S .. ':ready', room - oldest)
    for i = 1, #lowest do rows[2 * oldest + i] = lowest[i] end
  end
  if #rows == 0 then return 0 end
  local members, made = {}, {}
  for i = 1, #rows, 2 do
    members[#members + 1] = rows[i]
    made[i], made[i + 1] = rows[i], shard.generation
  end
  shard.turn = (shard.turn + #members) % FAIR
  redis.call('ZREM', S .. ':since', unpack(members))
  redis.call('HSET', S .. ':made', unpack(made))
  redis.call('ZADD', S .. ':held', 'LT', unpack(ick_swap(rows)))
  return #members
end

local function reserve_up_to(S, shard, count)
  shard.generation = shard.generation + 1
  while true do
    local room = math.min(count - redis.call('ZCARD', S .. ':held'), ICK_ROWS)
    if room <= 0 or reserve_some(S, shard, room) == 0 then return end
  end
end

redis.register_function{
  function_name = 'hw_channel_reserve',
  callback = function(keys, args)
    local S, consumer, lease_ms, count = keys[1], args[1], tonumber(args[2]), tonumber(args[3])
    local shard, now = load_shard(S), server_ms()
    if shard.closed then return channel_closed() end
    if shard.holder ~= '' and shard.holder ~= consumer and shard.till > now then
      return { 0, shard.till, {}, {}, -1 }
    end
    ripen(S, now)
    reserve_up_to(S, shard, count)
    local rows = {}
    if count > 0 then rows = redis.call('ZRANGE', S .. ':held', 0, count - 1, 'WITHSCORES') end
    local next_due = redis.call('ZRANGE', S .. ':later', 0, 0, 'WITHSCORES')[2]
    local due_ms = next_due and math.max(0, tonumber(next_due) - now) or -1
    if #rows == 0 then return { 0, 0, {}, {}, due_ms } end
    if shard.holder ~= consumer then shard.token = shard.token + 1 end
    local till = now + lease_ms
    redis.call('HSET', S, 'token', shard.token, 'holder', consumer, 'until', till,
      'generation', shard.generation, 'turn', shard.turn)
    return { shard.token, till, rows, made_of(S, rows, 1), due_ms }
  end,
  flags = { 'allow-oom' },
}

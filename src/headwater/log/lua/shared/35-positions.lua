--[[
  Positions of readers: retention stops before the slowest group and the slowest reader outside the log.

    K:readers    zset  reader outside the log -> the next offset it needs
    K:silent     zset  the same, of readers that were silent for so long that retention does not wait for them
    K:seen       zset  reader outside the log -> when it was last seen
    K:groups     zset  group -> time of its creation
    K:positions  zset  group -> an offset below which it needs nothing; +inf: retention does not wait for it

  Groups move forward with every ack. This is not stored here: a position is a lower bound, which is compared
  with the group itself when it is in the way of an eviction, for a few groups per call. A change that moves a
  group back lowers its bound first. A group without a bound counts as one that needs everything.

  So the slowest reader is the first of K:readers or of K:positions, however many there are: those that retention
  does not wait for are moved out of the way, a few per call. A call that has not come to the end of them takes
  the next one for the slowest: it evicts too little, and never too much.
]]
local POSITION_STEPS = 32

-- Returns the lowest offset that a group still needs: its first pending one, also in a box, or its next.
local function group_position(G)
  local oldest = redis.call('ZRANGE', G .. ':pending', 0, 0, 'WITHSCORES')
  if oldest[2] then return tonumber(oldest[2]) end
  local f = redis.call('HMGET', G, 'next', 'handed')
  local _, _, boxed = string.match(f[2] or '', HANDED)
  return tonumber(boxed or f[1] or nil)
end

-- Lowers the bound of a group that needs an earlier offset again.
local function lower_position(K, name, offset)
  redis.call('ZADD', K .. ':positions', 'LT', digits(offset), name)
end

-- Returns the time of the last read in a group: of its most recent member, or of forgotten ones.
local function group_seen(G)
  local newest = redis.call('ZRANGE', G .. ':members', -1, -1, 'WITHSCORES')[2]
  local f = redis.call('HMGET', G, 'seen', 'created')
  return math.max(tonumber(newest or 0), tonumber(f[1] or 0), tonumber(f[2] or 0))
end

-- Returns how long a reader may be silent until retention no longer waits for it; nil for no limit.
local function most_idle_ms(K)
  return tonumber(redis.call('HGET', K, 'max_idle_ms') or nil)
end

-- Returns the lowest offset up to `limit` that a reader outside the log still needs, and the reader. The third is
-- true when it may be one that is silent. Readers that were silent for too long are moved out of the way.
local function slowest_outside(K, limit)
  local idle_ms, now = most_idle_ms(K), server_ms()
  for step = 1, POSITION_STEPS do
    local reader, position = unpack(redis.call('ZRANGE', K .. ':readers', 0, 0, 'WITHSCORES'))
    position = tonumber(position)
    if not reader or position > limit then return nil end
    if not idle_ms then return position, reader, false end
    if step == POSITION_STEPS then return position, reader, true end
    local seen = redis.call('ZSCORE', K .. ':seen', reader)
    -- A reader of a call that stopped half-way counts as seen now.
    if not seen then redis.call('ZADD', K .. ':seen', digits(now), reader) end
    if not seen or tonumber(seen) + idle_ms >= now then return position, reader, false end
    redis.call('ZADD', K .. ':silent', digits(position), reader)
    redis.call('ZREM', K .. ':readers', reader)
  end
end

-- Lets retention wait for all readers and groups again: how long they may be silent has changed.
local function wait_for_all(K)
  if redis.call('EXISTS', K .. ':silent') == 1 then
    redis.call('ZUNIONSTORE', K .. ':readers', 2, K .. ':readers', K .. ':silent', 'AGGREGATE', 'MAX')
    redis.call('UNLINK', K .. ':silent')
  end
  if redis.call('ZCOUNT', K .. ':positions', '+inf', '+inf') > 0 then
    redis.call('ZUNIONSTORE', K .. ':positions', 1, K .. ':groups', 'WEIGHTS', 0)
  end
end

-- Groups of a call that stopped half-way have no bound yet.
local function add_missing_positions(K)
  if redis.call('ZCARD', K .. ':positions') == redis.call('ZCARD', K .. ':groups') then return end
  redis.call('ZUNIONSTORE', K .. ':positions', 2, K .. ':groups', K .. ':positions', 'WEIGHTS', 0, 1,
    'AGGREGATE', 'MAX')
end

-- Retention no longer waits for a group that nobody reads; its next read counts what it missed.
local function abandon_if_idle(K, name, G)
  local idle_ms = most_idle_ms(K)
  if not idle_ms or group_seen(G) + idle_ms >= server_ms() then return false end
  redis.call('HSET', G, 'abandoned', 1)
  redis.call('ZADD', K .. ':positions', '+inf', name)
  return true
end

-- Returns the lowest offset up to `limit` that a reader or group still needs, and which; nil when none does.
-- The third is true when not all could be checked in one call: then the offset is a lower bound.
local function slowest_reader(K, limit)
  local position, who, unsure = slowest_outside(K, limit)
  add_missing_positions(K)
  for step = 1, POSITION_STEPS do
    local name, bound = unpack(redis.call('ZRANGE', K .. ':positions', 0, 0, 'WITHSCORES'))
    bound = tonumber(bound)
    if not name or bound > (position or limit) then return position, who, unsure or false end
    if step == POSITION_STEPS then return bound, name, true end
    local G = group_key(K, name)
    local at = group_position(G)
    if not at then
      redis.call('ZREM', K .. ':positions', name)
      redis.call('ZREM', K .. ':groups', name)
    elseif at > bound then
      redis.call('ZADD', K .. ':positions', digits(at), name)
      if bound == 0 then redis.call('HDEL', G, 'abandoned') end
    elseif not abandon_if_idle(K, name, G) then
      return at, name, false
    end
  end
end

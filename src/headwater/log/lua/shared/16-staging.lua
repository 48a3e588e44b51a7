--[[
  Staging: batches that lie beside a stream and are not in it yet, until somebody publishes them.

    K:staged:<name>         hash   n: how many nodes; i -> node; f<i> -> "count:time:newest:fit";
                                   bytes: of all nodes; begun: they belong to a publish. Expires by
                                   itself until then.
    K:stagings              zset   name -> the ms in which it expires, +inf once it is begun: where to
                                   look for stagings. A name may be left of one that is gone.
    K:publishing            hash   producer -> "sequence:first:last:index:time:left:begun" of its
                                   unfinished publish: the offsets so far, which node of the staging
                                   in front is next, when the last step was, how many stagings are
                                   left, and whether all of them are marked as begun
    K:publish:<producer>    list   names of the stagings that it has still to move, in order

  A publish begins with its state, which notes what belongs to it; from then on it goes on in steps
  that anybody may make, until all of it is in the stream. A step is a write, whose last entry carries
  the state after it; what it leaves in the list and in the stagings is dropped by the next one.
]]
local function staged_key(K, name)
  return K .. ':staged:' .. name
end

local function publish_key(K, producer)
  return K .. ':publish:' .. producer
end

-- The list of stagings. One table, because a library has few local names.
local stagings = { COUNTED = 1000 }

function stagings.key(K)
  return K .. ':stagings'
end

-- The list expires with the last of the stagings, unless one of them does not.
function stagings.limit(K, now)
  local key = stagings.key(K)
  local last = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]
  if last and last ~= 'inf' then
    redis.call('PEXPIRE', key, digits(math.max(tonumber(last) - now, 1)))
  end
end

-- Lists a staging that lasts for some ms from now on, before it is made, and forgets what has expired.
function stagings.list(K, name, keep_ms)
  local key, now = stagings.key(K), server_ms()
  redis.call('ZREMRANGEBYSCORE', key, '-inf', '(' .. digits(now))
  redis.call('ZADD', key, digits(now + tonumber(keep_ms)), name)
  stagings.limit(K, now)
end

-- A staging that is begun stays until it is published.
function stagings.keep(K, name)
  redis.call('ZADD', stagings.key(K), '+inf', name)
  redis.call('PERSIST', stagings.key(K))
end

-- Drops a staging, and returns 1 when it was there.
function stagings.drop(K, name)
  local gone = redis.call('UNLINK', staged_key(K, name))
  redis.call('ZREM', stagings.key(K), name)
  stagings.limit(K, server_ms())
  return gone
end

-- Returns how many bytes lie in the stagings whose names begin so, of the COUNTED that last longest.
function stagings.bytes(K, prefix)
  local total = 0
  for _, name in ipairs(redis.call('ZRANGE', stagings.key(K), 0 - stagings.COUNTED, -1)) do
    if string.sub(name, 1, #prefix) == prefix then
      total = total + math.max(tonumber(redis.call('HGET', staged_key(K, name), 'bytes') or 0), 0)
    end
  end
  return total
end

-- Drops what is staged under a name, unless it belongs to a publish; returns 1 when it was there.
local function unstage(K, name)
  if redis.call('HEXISTS', staged_key(K, name), 'begun') == 1 then return 0 end
  return stagings.drop(K, name)
end

-- Drops a publish with the stagings that it has still to move.
local function drop_publish(K, producer)
  local P = publish_key(K, producer)
  for _, name in ipairs(redis.call('LRANGE', P, 0, -1)) do stagings.drop(K, name) end
  redis.call('UNLINK', P)
  redis.call('HDEL', K .. ':publishing', producer)
end

-- For the end of a stream with a few publishes: what is only staged has its own end.
local function drop_publishes(K)
  for _, producer in ipairs(redis.call('HKEYS', K .. ':publishing')) do drop_publish(K, producer) end
end

-- The publishes of a stream that is deleted are none of a new one: they are put aside, and their keys
-- are freed later, STEP publishes in one call. One table, because a library has few local names.
local deleted_publishes = { STEP = 4 }

function deleted_publishes.key(K, era)
  return K .. ':deleted:' .. era .. ':publishing'
end

function deleted_publishes.set_aside(K, era)
  if redis.call('EXISTS', K .. ':publishing') == 1 then
    redis.call('RENAME', K .. ':publishing', deleted_publishes.key(K, era))
  end
end

-- Drops the list of a publish, and the stagings that it names if they belong to one: those of a stream
-- that was deleted, or of a publish that was done. A publish that never began has marked none.
function deleted_publishes.drop_list(K, P)
  for _, name in ipairs(redis.call('LRANGE', P, 0, -1)) do
    if redis.call('HEXISTS', staged_key(K, name), 'begun') == 1 then stagings.drop(K, name) end
  end
  redis.call('UNLINK', P)
end

-- Returns whether there are more.
function deleted_publishes.drop_some(K, era)
  local publishing = deleted_publishes.key(K, era)
  for _, producer in ipairs(redis.call('HRANDFIELD', publishing, deleted_publishes.STEP)) do
    -- In a stream of that name that is new since, the list is that of a new publish.
    if redis.call('HEXISTS', K .. ':publishing', producer) == 0 then
      deleted_publishes.drop_list(K, publish_key(K, producer))
    end
    redis.call('HDEL', publishing, producer)
  end
  return redis.call('EXISTS', publishing) == 1
end

--[[
  Staging: batches that are stored beside a stream and are not part of it until they are published.

    K:staged:<name>         hash   n: how many nodes; i -> node; f<i> -> "count:time:newest:fit";
                                   bytes: of all nodes; begun: they belong to a publish. Expires by
                                   itself until then.
    K:stagings              zset   name -> the ms in which it expires, +inf once it is begun: where to
                                   look for stagings. A name may be left of one that is gone.
    K:publishing            hash   producer -> "sequence:first:last:index:time:left:begun:digest" of its
                                   unfinished publish: the offsets so far, the next node of the first
                                   staging, the time of the last step, how many stagings are
                                   left, whether all of them are marked as begun, and the digest of the
                                   content, if there is one
    K:publish:<producer>    list   names of the stagings that it has still to move, in order

  A publish begins with its state, which names what belongs to it. From then on it continues in steps, which
  any client may do, until all of it is in the stream. A step is a write whose last entry carries the state
  after it; the next step drops what it leaves in the list and in the stagings.
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

-- Returns when the last of the stagings expires, 'inf' for never; nil without any.
function stagings.last(K)
  return redis.call('ZRANGE', K .. ':stagings', -1, -1, 'WITHSCORES')[2]
end

-- The list expires with the last of the stagings, unless one of them does not.
function stagings.limit(K, now, last)
  if last and last ~= 'inf' then
    redis.call('PEXPIRE', stagings.key(K), digits(math.max(tonumber(last) - now, 1)))
  end
end

-- Lists a staging that lasts for some ms from now on, before it is created, and forgets those that have
-- expired.
function stagings.list(K, name, keep_ms)
  local key, now = stagings.key(K), server_ms()
  local expires = now + tonumber(keep_ms)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', '(' .. digits(now))
  -- The expiry is read before a name is added: the list must not be left without an expiry.
  local last = stagings.last(K)
  redis.call('ZADD', key, digits(expires), name)
  stagings.limit(K, now, last == 'inf' and last or math.max(tonumber(last or 0), expires))
end

-- A staging that belongs to a publish is kept until it is published.
function stagings.keep(K, name)
  redis.call('ZADD', stagings.key(K), '+inf', name)
  redis.call('PERSIST', stagings.key(K))
end

-- Drops a staging, and returns 1 when it was there.
function stagings.drop(K, name)
  local gone = redis.call('UNLINK', staged_key(K, name))
  redis.call('ZREM', stagings.key(K), name)
  stagings.limit(K, server_ms(), stagings.last(K))
  return gone
end

-- Returns the bytes of the stagings whose names begin with a prefix, of the COUNTED that last longest.
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

-- For the deletion of a stream with a few publishes; stagings that are not being published expire by
-- themselves.
local function drop_publishes(K)
  for _, producer in ipairs(redis.call('HKEYS', K .. ':publishing')) do drop_publish(K, producer) end
end

-- The publishes of a deleted stream do not belong to a new one: they are set aside, and their keys are freed
-- later, STEP publishes in one call. One table, because a library has few local names.
local deleted_publishes = { STEP = 4 }

function deleted_publishes.key(K, era)
  return K .. ':deleted:' .. era .. ':publishing'
end

function deleted_publishes.set_aside(K, era)
  if redis.call('EXISTS', K .. ':publishing') == 1 then
    redis.call('RENAME', K .. ':publishing', deleted_publishes.key(K, era))
  end
end

-- Drops the list of a publish, and the stagings that it names if they belong to a publish: to one of the
-- deleted stream, or to one that was done. A publish that never began has marked none.
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
    -- If a new stream has this name, the list belongs to a new publish.
    if redis.call('HEXISTS', K .. ':publishing', producer) == 0 then
      deleted_publishes.drop_list(K, publish_key(K, producer))
    end
    redis.call('HDEL', publishing, producer)
  end
  return redis.call('EXISTS', publishing) == 1
end

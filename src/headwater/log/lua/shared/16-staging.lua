--[[
  Staging: batches that lie beside a stream and are not in it yet, until somebody publishes them.

    K:staged:<name>         hash   n: how many nodes; i -> node; f<i> -> "count:time:newest:fit";
                                   begun: they belong to a publish. Expires by itself until then.
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

-- Drops what is staged under a name, unless it belongs to a publish; returns 1 when it was there.
local function unstage(K, name)
  local S = staged_key(K, name)
  if redis.call('HEXISTS', S, 'begun') == 1 then return 0 end
  return redis.call('UNLINK', S)
end

-- Drops a publish with the stagings that it has still to move.
local function drop_publish(K, producer)
  local P = publish_key(K, producer)
  for _, name in ipairs(redis.call('LRANGE', P, 0, -1)) do
    redis.call('UNLINK', staged_key(K, name))
  end
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
    local S = staged_key(K, name)
    if redis.call('HEXISTS', S, 'begun') == 1 then redis.call('UNLINK', S) end
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

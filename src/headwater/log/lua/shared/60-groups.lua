--[[
  Creating and removing a group, and removing all groups of a stream that is deleted.

    K:deleted                   zset  eras of the stream whose keys are not all freed yet
    K:deleted:<era>             zset  names of the groups of that era
    K:deleted:<era>:publishing  hash  its publishes (16-staging.lua)

  A stream that is deleted with many groups or publishes gets a new era, by one field of K: groups of
  another era do not belong to it. Their keys are freed in steps, which any client may do.
]]
-- How many groups one call frees or tidies: each may have members to serve, and is in the list of all groups
-- with waiting members.
local FREE_GROUPS = 16

-- A listed group that does not exist is harmless; retention would not wait for one that is not listed.
local function create_group(K, name, stream, next_offset, now)
  local G = group_key(K, name)
  redis.call('ZADD', K .. ':groups', digits(now), name)
  redis.call('ZADD', K .. ':positions', digits(next_offset), name)
  redis.call('HSET', G, 'next', digits(next_offset), 'pending', 0, 'max_pending', 0, 'dead_letters', '',
    'created', digits(now), 'era', stream.era, 'start', digits(next_offset))
end

-- Frees the keys of a group of any era; returns nil when there are too many boxes for one call, otherwise 1
-- when there was a group.
local function free_group(K, name)
  local G = group_key(K, name)
  -- Boxes are found by their waiters, some of which are only in the field "handed".
  for waiter in string.gmatch(redis.call('HGET', G, 'handed') or '', HANDED) do
    redis.call('DEL', box_key(G, waiter))
  end
  if not drop_boxes(G) then return nil end
  local existed = redis.call('EXISTS', G)
  redis.call('UNLINK', G, G .. ':pending', G .. ':due', G .. ':expired', G .. ':waiters', G .. ':served',
    G .. ':members', G .. ':dead', G .. ':origins', G .. ':failing', G .. ':causes', G .. ':flying',
    G .. ':tags', G .. ':keys', G .. ':lanes', G .. ':untagged', G .. ':buckets')
  return existed
end

local function unlist_group(K, name)
  forget_waiting(K, load_stream(K), name)
  redis.call('ZREM', K .. ':positions', name)
  redis.call('ZREM', K .. ':groups', name)
end

-- Frees some groups or publishes of a stream that was deleted; returns whether there are more.
local function free_deleted(K)
  local era = redis.call('ZRANGE', K .. ':deleted', 0, 0)[1]
  if not era then return false end
  if deleted_publishes.drop_some(K, era) then return true end
  local listed, stream = K .. ':deleted:' .. era, load_stream(K)
  local names = redis.call('ZRANGE', listed, 0, FREE_GROUPS - 1)
  for _, name in ipairs(names) do
    -- A group of the new stream may have the same name: it freed the old one when it began.
    local now_of = redis.call('HGET', group_key(K, name), 'era')
    if (now_of or '') ~= stream.era and not free_group(K, name) then return true end
    redis.call('ZREM', listed, name)
  end
  if #names == FREE_GROUPS then return true end
  redis.call('ZREM', K .. ':deleted', era)
  if redis.call('EXISTS', K .. ':deleted', K .. ':groups') > 0 then
    return redis.call('EXISTS', K .. ':deleted') == 1
  end
  -- Only the era is left of a stream that was not written since.
  if redis.call('HLEN', K) == 1 and stream.era ~= '' then redis.call('UNLINK', K) end
  return false
end

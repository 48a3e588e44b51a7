--[[
  Staging: batches that lie beside a stream and are not in it yet, until somebody publishes them.

    K:staged:<name>         hash   n: how many nodes; i -> node; f<i> -> "count:time:newest:fit";
                                   begun: they belong to a publish. Expires by itself until then.
    K:publishing            hash   producer -> "sequence:first:last:index:time" of its unfinished
                                   publish: the offsets so far, which node of the staging in front
                                   is next, when the last step was
    K:publish:<producer>    list   names of the stagings that it has still to move, in order

  A publish begins in one call, which notes what belongs to it; from then on it goes on in steps
  that anybody may make, until all of it is in the stream.
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

-- For the end of a stream: what is only staged has its own end.
local function drop_publishes(K)
  local found = redis.call('HGETALL', K .. ':publishing')
  for i = 1, #found, 2 do
    local P = publish_key(K, found[i])
    for _, name in ipairs(redis.call('LRANGE', P, 0, -1)) do
      redis.call('UNLINK', staged_key(K, name))
    end
    redis.call('UNLINK', P)
  end
  redis.call('UNLINK', K .. ':publishing')
end

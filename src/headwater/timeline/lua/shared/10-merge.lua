--[[
  The merge rule of timelines, in the server. A timeline K is two sorted sets, as in Roshi, and nothing else:

    K+    members whose newest operation is an insert, by its score
    K-    members whose newest operation is a delete, by its score: tombstones

  A higher score wins; of equal scores the delete. A member is in at most one of the sets. Both sets
  together keep the newest elements of a key, by (score, member), and a delete counts like an
  insert: an element that is trimmed is below everything that is kept, and can never come back.

  Functions do not roll back when one of their commands fails. So a member is added to its new set before it is
  removed from the other: in between it is in both, the higher state counts, and every write of that state, a
  repeat or a repair, removes the lower one. The oldest inserts are removed before tombstones of the same age,
  so that no insert that a tombstone has beaten is left when the tombstone is removed.

  Scores are passed as the server or the client formats them, since Lua would lose digits; as numbers they
  are only compared. One table holds all of this, because a library has few local names.
]]
local timeline = {
  -- Lua unpacks fewer than 8000 values; a pair is a score and a member.
  PAIRS = 3500,
  -- How many elements a call removes besides one for each operation; the next call continues.
  REMOVED = 1000,
}

-- Members are compared as bytes, as in sorted sets; Lua's own comparison depends on the locale.
function timeline.before(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end

function timeline.older(score, member, than_score, than_member)
  local s, t = tonumber(score), tonumber(than_score)
  if s ~= t then return s < t end
  return timeline.before(member, than_member)
end

function timeline.size(adds, deletes)
  return redis.call('ZCARD', adds) + redis.call('ZCARD', deletes)
end

-- Returns the oldest element that a key of a given size keeps, as { member, score }; nil while there is room.
function timeline.floor(adds, deletes, size, most)
  if size < most then return nil end
  local a = redis.call('ZRANGE', adds, 0, 0, 'WITHSCORES')
  local d = redis.call('ZRANGE', deletes, 0, 0, 'WITHSCORES')
  if not a[1] then return d end
  if not d[1] then return a end
  return timeline.older(a[2], a[1], d[2], d[1]) and a or d
end

-- Removes the oldest elements of both sets together until `most` are left, at most `allowed` of them; returns
-- how many were removed.
function timeline.trim(adds, deletes, most, allowed)
  local inserted, deleted = redis.call('ZCARD', adds), redis.call('ZCARD', deletes)
  local over = math.min(inserted + deleted - most, allowed)
  if over <= 0 then return 0 end
  -- The number of inserts among them is found by bisection: those that are older than the oldest deletes
  -- that would be removed instead.
  local low, high = math.max(0, over - deleted), math.min(over, inserted)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local rival = over - middle - 1
    local a = redis.call('ZRANGE', adds, middle, middle, 'WITHSCORES')
    local d = redis.call('ZRANGE', deletes, rival, rival, 'WITHSCORES')
    if timeline.older(a[2], a[1], d[2], d[1]) then low = middle + 1 else high = middle end
  end
  if low > 0 then redis.call('ZREMRANGEBYRANK', adds, 0, low - 1) end
  if low < over then redis.call('ZREMRANGEBYRANK', deletes, 0, over - low - 1) end
  return over
end

-- Removes the elements of both sets below the horizon, at most `allowed`; returns how many.
function timeline.forget(adds, deletes, horizon, allowed)
  local removed = 0
  for _, set in ipairs{ adds, deletes } do
    local count = math.min(redis.call('ZCOUNT', set, '-inf', '(' .. horizon), allowed - removed)
    if count > 0 then removed = removed + redis.call('ZREMRANGEBYRANK', set, 0, count - 1) end
  end
  return removed
end

-- Returns how many elements of a set come before (score, member), newest first; with `too`, including itself.
function timeline.newer(set, score, member, too)
  local low = redis.call('ZCOUNT', set, '(' .. score, '+inf')
  local high = low + redis.call('ZCOUNT', set, score, score)
  -- Among equal scores, the place is found by bisection.
  while low < high do
    local middle = math.floor((low + high) / 2)
    local found = redis.call('ZRANGE', set, middle, middle, 'REV')[1]
    if timeline.before(member, found) or (too and found == member) then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

--[[
  A farm may be moved to other instances while it is used. Each instance then has a hash with the `epoch` of
  the layout, and refuses callers that know an older one: they would write where no client reads any more, or
  read where nothing is. The last key and the last argument of every function here are that hash and the
  caller's epoch; this removes them, and replies with a refusal.
]]
function timeline.fence(keys, args)
  local layout, known = table.remove(keys), tonumber(table.remove(args))
  local epoch = redis.call('HGET', layout, 'epoch')
  if epoch and tonumber(epoch) > known then return redis.error_reply('HW_LAYOUT ' .. epoch) end
end

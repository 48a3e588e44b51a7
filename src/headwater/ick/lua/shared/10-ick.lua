--[[
  An Ick, as redis-ick 0.1.4 lays it out, so that both work on the same one. K is the caller's own
  key, without any prefix of ours; all three keys are named in each call.

    K                   string  'ick.v1'
    K/ick/{K}/pset      zset    the producer set: what is dirty
    K/ick/{K}/cset      zset    the consumer set: what is reserved

  Scores travel as the server spells them and never become numbers of Lua, which would cut digits.
]]
local ICK_VERSION = 'ick.v1'
-- How many members one call moves; larger requests go in steps. Lua unpacks fewer than 8000 values.
local ICK_ROWS = 1000

local function ick_fault(part, found)
  return nil, redis.error_reply('HW_ICK ' .. part .. ' ' .. found)
end

-- What lies under a key when a command found it to be of another kind; nil when it did not.
local function ick_wrong_type(reply, key)
  if type(reply) ~= 'table' or not reply.err then return nil end
  if not string.find(reply.err, 'WRONGTYPE', 1, true) then error(reply) end
  return redis.call('TYPE', key).ok
end

--[[
  Look at an Ick before touching it: returns { exists, pset size, cset size }, or nil and the error
  HW_ICK <flag, pset or cset> <what is there instead>.
]]
local function ick_look(keys)
  local flag = redis.pcall('GET', keys[1])
  local wrong = ick_wrong_type(flag, keys[1])
  if wrong then return ick_fault('flag', wrong) end
  local psize = redis.pcall('ZCARD', keys[2])
  wrong = ick_wrong_type(psize, keys[2])
  if wrong then return ick_fault('pset', wrong) end
  local csize = redis.pcall('ZCARD', keys[3])
  wrong = ick_wrong_type(csize, keys[3])
  if wrong then return ick_fault('cset', wrong) end
  if flag and flag ~= ICK_VERSION then return ick_fault('flag', 'version') end
  if not flag and psize + csize > 0 then return ick_fault('flag', 'none') end
  return { exists = flag and true, psize = psize, csize = csize }
end

local function ick_begin(keys, ick)
  if not ick.exists then redis.call('SET', keys[1], ICK_VERSION) end
end

--[[
  Turn member, score, member, score, ... into what ZADD takes, the last pair first: a small set is a
  list, in which what goes to its head is put without reading the scores of the others.
]]
local function ick_swap(rows)
  local swapped, at = {}, 1
  for i = #rows - 1, 1, -2 do
    swapped[at], swapped[at + 1] = rows[i + 1], rows[i]
    at = at + 2
  end
  return swapped
end

--[[
  Move the lowest of one set into the other until that has `most` members, `step` of them at most. A
  member that is there already takes the lower score and uses no place. It goes in before it goes out:
  when a call fails in between it is in both, which is what a member is that became dirty again.
  Returns whether there may be more to move; and member, score, ... of what is now in the other set, if
  that is known without looking: it was empty, and one step did.
]]
local function ick_fold(from, into, most, step)
  local size, left, known = redis.call('ZCARD', into), step, nil
  while size < most and left > 0 do
    local rows = redis.call('ZRANGE', from, 0, math.min(most - size, left) - 1, 'WITHSCORES')
    if #rows == 0 then return false, known end
    redis.call('ZADD', into, 'LT', unpack(ick_swap(rows)))
    redis.call('ZREMRANGEBYRANK', from, 0, #rows / 2 - 1)
    known = size == 0 and rows or nil
    left, size = left - #rows / 2, known and #rows / 2 or redis.call('ZCARD', into)
  end
  return size < most, known
end

-- Remove members from a set, as many as there are from args[first] on; returns how many were there.
local function ick_remove(key, args, first)
  local gone = 0
  for i = first, #args, ICK_ROWS do
    gone = gone + redis.call('ZREM', key, unpack(args, i, math.min(i + ICK_ROWS - 1, #args)))
  end
  return gone
end

--[[
  An Ick, with the keys of redis-ick 0.1.4, so that both libraries can work on the same one. K is the
  caller's own key, without a prefix of ours; each call names all three keys.

    K                   string  'ick.v1'
    K/ick/{K}/pset      zset    the producer set: dirty members
    K/ick/{K}/cset      zset    the consumer set: reserved members

  Scores are passed as the server formats them and never become Lua numbers, which would lose digits.
]]
local ICK_VERSION = 'ick.v1'
-- How many members one call moves; larger requests take several calls. Lua unpacks fewer than 8000 values.
local ICK_ROWS = 1000
-- How many bytes of members one reply has at most, but one member at least; and how many are read at once for it.
local ICK_BYTES, ICK_STEP = 4194304, 50

local function ick_fault(part, found)
  return nil, redis.error_reply('HW_ICK ' .. part .. ' ' .. found)
end

-- Returns the type of a key when a command found it to be of another type; nil otherwise.
local function ick_wrong_type(reply, key)
  if type(reply) ~= 'table' or not reply.err then return nil end
  if not string.find(reply.err, 'WRONGTYPE', 1, true) then error(reply) end
  return redis.call('TYPE', key).ok
end

--[[
  Checks an Ick before it is used: returns { exists, pset size, cset size }, or nil and the error
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
  Converts member, score, member, score, ... into arguments of ZADD, the last pair first: a small set is a
  list, and a pair is added at its head without reading the scores of the others.
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
  Moves the lowest members of one set into the other until that has `most` members, at most `step` of them.
  A member that is there already keeps the lower score and uses no place. A member is added before it is
  removed: if the call fails in between, it is in both sets, like a member that became dirty again.
  Returns whether there may be more to move; and member, score, ... of the other set, if they are known
  without another read because that set was empty and one step was enough.
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

-- Returns whether member, score, ... have more bytes than a reply may have.
local function ick_too_large(rows)
  local bytes = 0
  for i = 1, #rows, 2 do bytes = bytes + #rows[i] end
  return #rows > 2 and bytes > ICK_BYTES
end

-- Returns the members of a set from a rank on, up to a number or to the bytes of a reply: member, score, ...
local function ick_page(key, first, count)
  local rows, bytes = {}, 0
  while #rows < 2 * count and bytes < ICK_BYTES do
    local last = first + math.min(count, #rows / 2 + ICK_STEP) - 1
    local found = redis.call('ZRANGE', key, first + #rows / 2, last, 'WITHSCORES')
    for i = 1, #found, 2 do
      rows[#rows + 1], rows[#rows + 2] = found[i], found[i + 1]
      bytes = bytes + #found[i]
      if bytes >= ICK_BYTES then break end
    end
    if #found == 0 then break end
  end
  return rows
end

-- Removes members from a set, all from args[first] on; returns how many were there.
local function ick_remove(key, args, first)
  local gone = 0
  for i = first, #args, ICK_ROWS do
    gone = gone + redis.call('ZREM', key, unpack(args, i, math.min(i + ICK_ROWS - 1, #args)))
  end
  return gone
end

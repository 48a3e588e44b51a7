--[[
  Fallback commands, for changes that must happen although the right to a command was revoked while a call
  ran: the undo of a half-done change, or a record of what has happened. When the usual command is denied,
  another one does exactly the same. So one denied command never leaves anything half done.
]]
local function refused(reply)
  return type(reply) == 'table' and reply.err and reply
end

-- Sets fields of a hash: { field, value, field, value, ... }; count: how many words, all when not given.
local function set_fields(key, words, count)
  count = count or #words
  if refused(redis.pcall('HSET', key, unpack(words, 1, count))) then
    redis.call('HMSET', key, unpack(words, 1, count))
  end
end

local function increase_to(key, score, member)
  local before = redis.call('ZSCORE', key, member)
  redis.call('ZINCRBY', key, before and score - before or score, member)
end

-- Adds a member to a sorted set. The score of an existing member must be a whole number.
local function add_member(key, score, member)
  if refused(redis.pcall('ZADD', key, score, member)) then increase_to(key, score, member) end
end

-- The same for several: { score, member, score, member, ... }.
local function add_members(key, words)
  if not refused(redis.pcall('ZADD', key, unpack(words))) then return end
  for i = 1, #words, 2 do increase_to(key, words[i], words[i + 1]) end
end

-- Removes members of a sorted set.
local function remove_members(key, members)
  if not refused(redis.pcall('ZREM', key, unpack(members))) then return end
  for _, member in ipairs(members) do
    local rank = redis.call('ZRANK', key, member)
    if rank then redis.call('ZREMRANGEBYRANK', key, rank, rank) end
  end
end

-- Removes elements from the end of a list.
local function cut_end(key, count)
  if refused(redis.pcall('LTRIM', key, 0, 0 - count - 1)) then redis.call('RPOP', key, count) end
end

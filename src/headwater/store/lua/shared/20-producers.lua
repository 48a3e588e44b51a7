--[[
  What producers were answered: a repeat of (producer, sequence) is recognised inside the same call
  and gets the first answer, which is the first and the last number that it was given.

    K:producers    zset    producer -> time of its latest write
    K:answers      hash    producer -> its newest sequence;
                           producer, a zero byte and sequence mod 128 -> "sequence:first:last"
]]
-- How many of a producer's latest writes are remembered with their answers.
local ANSWERS = 128

-- Returns first and last when it is a repeat, nil and an error when it is too old to be known.
local function remembered_answer(K, producer, sequence)
  local newest = redis.call('HGET', K .. ':answers', producer)
  if not newest or sequence > tonumber(newest) then return nil end
  local slot = redis.call('HGET', K .. ':answers', producer .. '\0' .. digits(sequence % ANSWERS))
  local seq, first, last = string.match(slot or '', '^(%d+):(%d+):(%d+)$')
  if tonumber(seq) ~= sequence then return nil, redis.error_reply('HW_STALE ' .. newest) end
  return tonumber(first), tonumber(last)
end

local function remember_answer(K, producer, sequence, first, last, now)
  redis.call('HSET', K .. ':answers', producer, digits(sequence),
    producer .. '\0' .. digits(sequence % ANSWERS),
    table.concat({ digits(sequence), digits(first), digits(last) }, ':'))
  redis.call('ZADD', K .. ':producers', digits(now), producer)
end

-- Forgets some of those that have been silent since a time; returns how many.
local function forget_producers(K, since)
  local silent = redis.call('ZRANGE', K .. ':producers', '-inf', digits(since), 'BYSCORE', 'LIMIT', 0, 64)
  for _, producer in ipairs(silent) do
    redis.call('HDEL', K .. ':answers', producer)
    for slot = 0, ANSWERS - 1 do redis.call('HDEL', K .. ':answers', producer .. '\0' .. slot) end
    redis.call('ZREM', K .. ':producers', producer)
  end
  return #silent
end

--[[
  Replies to producers: a repeat of (producer, sequence) is recognised inside the same call and gets the
  first reply, which is the first and the last number that it was given.

    K:producers    zset    producer -> time of its latest write
    K:answers      hash    producer -> its newest sequence;
                           producer, a zero byte and sequence mod 128 ->
                           "sequence:first:last" and, when its writer sent one, ":digest"

  The digest is of what was written. A sequence that is repeated with another digest was reused, which is an
  error: replying from memory would silently drop the new content. A digest may have several parts, joined by
  dots: one part in common shows that it is a repeat.
]]
-- How many of a producer's latest writes are remembered with their replies.
local ANSWERS = 128

-- Parses a sequence as writers send it: "sequence" or "sequence:digest"; and, behind ">", which sequence must be the
-- newest one before it, 0 for none.
local function sequence_and_digest(text)
  local sequence, digest, after = string.match(text, '^(%d+):?([%x.]*)>?(%d*)$')
  return tonumber(sequence), digest, tonumber(after)
end

-- Returns whether two digests are of the same content, or one of them is missing, as '' or nil.
local function is_same_content(known, digest)
  if (known or '') == '' or (digest or '') == '' then return true end
  for part in string.gmatch(digest, '%x+') do
    if string.find('.' .. known .. '.', '.' .. part .. '.', 1, true) then return true end
  end
  return false
end

-- Returns first and last when it is a repeat, nil and an error when it is too old to be known or has other
-- content.
local function remembered_answer(K, producer, sequence, digest)
  local newest = redis.call('HGET', K .. ':answers', producer)
  if not newest or sequence > tonumber(newest) then return nil end
  local slot = redis.call('HGET', K .. ':answers', producer .. '\0' .. digits(sequence % ANSWERS))
  local seq, first, last, known = string.match(slot or '', '^(%d+):(%d+):(%d+):?([%x.]*)$')
  if tonumber(seq) ~= sequence then return nil, redis.error_reply('HW_STALE ' .. newest) end
  if not is_same_content(known, digest) then
    return nil, redis.error_reply('HW_REUSED ' .. first .. ' ' .. last)
  end
  return tonumber(first), tonumber(last)
end

-- newest: the newest sequence that is remembered, when this one may be older.
local function remember_answer(K, producer, sequence, first, last, now, digest, newest)
  local answer = table.concat({ digits(sequence), digits(first), digits(last) }, ':')
  if (digest or '') ~= '' then answer = answer .. ':' .. digest end
  redis.call('HSET', K .. ':answers', producer, digits(math.max(sequence, newest or 0)),
    producer .. '\0' .. digits(sequence % ANSWERS), answer)
  redis.call('ZADD', K .. ':producers', digits(now), producer)
end

-- Forgets some producers that have been silent since a time; returns how many.
local function forget_producers(K, since)
  local silent = redis.call('ZRANGE', K .. ':producers', '-inf', digits(since), 'BYSCORE', 'LIMIT', 0, 64)
  for _, producer in ipairs(silent) do
    local fields = { producer }
    for slot = 0, ANSWERS - 1 do fields[slot + 2] = producer .. '\0' .. slot end
    redis.call('HDEL', K .. ':answers', unpack(fields))
    redis.call('ZREM', K .. ':producers', producer)
  end
  return #silent
end

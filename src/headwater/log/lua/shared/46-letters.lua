--[[
  The places of a group's dead letters.

    G:dead     zset  score: offset among the dead letters; member: "offset:first:last:attempt" of neighbouring
                     letters, where first..last are the offsets of their messages in the stream
    G:origins  zset  the same members; score: last. It says whether a message is a dead letter

  A range has at most `longest` messages. A message may be in several: it can become a dead letter again
  after a seek.
]]
local dead_ranges = { longest = 1000 }

-- Adds a range to words for add_members.
function dead_ranges.add(words, at, first, last, attempt)
  local n = #words
  words[n + 1] = digits(at)
  words[n + 2] = table.concat({ digits(at), digits(first), digits(last), attempt }, ':')
end

-- Adds ranges of letters; words: those of dead_ranges.add.
function dead_ranges.put(G, words)
  local origins = {}
  for i = 2, #words, 2 do
    origins[i - 1], origins[i] = string.match(words[i], '^%d+:%d+:(%d+):'), words[i]
  end
  add_members(G .. ':dead', words)
  redis.pcall('ZADD', G .. ':origins', unpack(origins))
end

-- Removes ranges of letters, and puts what is kept of them in their place.
function dead_ranges.replace(G, members, stay)
  redis.call('ZREM', G .. ':dead', unpack(members))
  redis.pcall('ZREM', G .. ':origins', unpack(members))
  if stay[1] then dead_ranges.put(G, stay) end
end

-- Returns the offsets of messages in a range of letters, and their attempts.
function dead_ranges.parse(member)
  local first, last, attempt = string.match(member, '^%d+:(%d+):(%d+):(%d+)$')
  return { first = to_number(first), last = to_number(last), attempt = to_number(attempt) }
end

-- Returns ranges of letters with messages in first..last, by the last offset of each, up to `most` that end
-- there and those that end after it; nil when more than `most` end there.
function dead_ranges.with_messages(G, first, last, most)
  local key, found = G .. ':origins', {}
  if redis.call('ZCOUNT', key, digits(first), digits(last)) > most then return nil end
  local stop = digits(last + dead_ranges.longest - 1)
  for _, member in ipairs(redis.call('ZRANGE', key, digits(first), stop, 'BYSCORE', 'LIMIT', 0, most + 4 * dead_ranges.longest)) do
    local range = dead_ranges.parse(member)
    if range.first <= last then found[#found + 1] = range end
  end
  return found
end

-- Returns the offset after the newest dead letter, 0 without any: later letters get this offset or a higher one.
function dead_ranges.end_of(G)
  local at, first, last = string.match(redis.call('ZRANGE', G .. ':dead', -1, -1)[1] or '', '^(%d+):(%d+):(%d+):')
  return at and tonumber(at) + tonumber(last) - tonumber(first) + 1 or 0
end

-- Returns up to STEP_RANGES ranges of letters, from a place on and before an end.
function dead_ranges.between(G, from, stop)
  return redis.call('ZRANGE', G .. ':dead', from, '(' .. stop, 'BYSCORE', 'LIMIT', 0, STEP_RANGES)
end

-- Returns the range of dead letters at an offset among them, with the stored member; nil for none.
function dead_ranges.covering(G, at)
  local found = redis.call('ZRANGE', G .. ':dead', digits(at), '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 1)
  local start, first, last, attempt = string.match(found[1] or '', '^(%d+):(%d+):(%d+):(%d+)$')
  if not start then return nil end
  local range = {
    member = found[1], at = tonumber(start), first = tonumber(first), last = tonumber(last), attempt = attempt,
  }
  return range.at + range.last - range.first >= at and range or nil
end

--[[
  The places of a group's dead letters.

    G:dead  zset  score: offset among the dead letters; member: "offset:first:last:attempt" of neighbouring
                  letters, where first..last are the offsets of their messages in the stream
]]
local dead_ranges = {}

-- Adds a range to words for add_members.
function dead_ranges.add(words, at, first, last, attempt)
  local n = #words
  words[n + 1] = digits(at)
  words[n + 2] = table.concat({ digits(at), digits(first), digits(last), attempt }, ':')
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

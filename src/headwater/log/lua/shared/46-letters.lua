--[[
  Where the dead letters of a group lie.

    G:dead  zset  score: offset among the dead letters; member: "offset:first:last:attempt" of letters that
                  lie together, where first..last are the offsets that their messages have in the stream
]]
local dead_ranges = {}

-- Adds a range to words for add_members.
function dead_ranges.add(words, at, first, last, attempt)
  local n = #words
  words[n + 1] = digits(at)
  words[n + 2] = table.concat({ digits(at), digits(first), digits(last), attempt }, ':')
end

-- Returns the dead letters that lie at an offset among them, with the stored member; nil for none.
function dead_ranges.covering(G, at)
  local found = redis.call('ZRANGE', G .. ':dead', digits(at), '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 1)
  local start, first, last, attempt = string.match(found[1] or '', '^(%d+):(%d+):(%d+):(%d+)$')
  if not start then return nil end
  local range = {
    member = found[1], at = tonumber(start), first = tonumber(first), last = tonumber(last), attempt = attempt,
  }
  return range.at + range.last - range.first >= at and range or nil
end

--[[
  Errors of failed attempts, which are shown with dead letters. Delivery does not need them, so an error here
  does not fail a call.

    G:failing  zset  score: offset; member: "offset:first delivered (ms) or nothing:error"; of messages
                     that failed and are redelivered, the 1000 newest
    G:causes   zset  the same, of messages that were given up, until they are redriven or discarded

  An error is "type\ntext". Entries of messages that succeeded later stay in G:failing until newer ones
  replace them, so that an ack need not look for them.
]]
local failures = { most = 1000 }

function failures.between(key, first, last)
  local found = redis.pcall('ZRANGE', key, first, last, 'BYSCORE')
  return refused(found) and {} or found
end

-- Records a failed attempt; report: its attempt, how long the member had it (ms) or '', and its error.
function failures.note(G, offset, report, gives_up)
  local at = digits(offset)
  local before = failures.between(G .. ':failing', at, at)[1]
  local first = before and string.match(before, '^%d+:(%d*):') or ''
  if first == '' and report.attempt == 1 then first = report.since end
  if before then redis.pcall('ZREM', G .. ':failing', before) end
  local key = G .. (gives_up and ':causes' or ':failing')
  redis.pcall('ZREMRANGEBYSCORE', key, at, at)
  redis.pcall('ZADD', key, at, table.concat({ at, first, report.error }, ':'))
end

function failures.trim(G)
  redis.pcall('ZREMRANGEBYRANK', G .. ':failing', 0, -1 - failures.most)
end

-- Messages became dead letters: their errors are kept with them.
function failures.keep(G, first, last)
  local known = failures.between(G .. ':failing', digits(first), digits(last))
  if not known[1] then return end
  local words = {}
  for i, member in ipairs(known) do
    local at = string.match(member, '^%d+')
    words[2 * i - 1], words[2 * i] = at, member
    -- It may have been a dead letter before: the latest failure counts.
    redis.pcall('ZREMRANGEBYSCORE', G .. ':causes', at, at)
  end
  redis.pcall('ZADD', G .. ':causes', unpack(words))
  redis.pcall('ZREM', G .. ':failing', unpack(known))
end

-- Forgets why messages were given up; one that became a dead letter twice has one entry for both letters.
function failures.forget_causes(G, first, last)
  redis.pcall('ZREMRANGEBYSCORE', G .. ':causes', digits(first), digits(last))
end

-- Forgets failures of messages that count as never tried.
function failures.forget(G, first, last)
  redis.pcall('ZREMRANGEBYSCORE', G .. ':failing', digits(first), digits(last))
  failures.forget_causes(G, first, last)
end

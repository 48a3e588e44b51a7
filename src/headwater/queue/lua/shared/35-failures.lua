--[[
  Errors of failed attempts, which are shown with dead letters. Delivery does not need them, so they are stored
  after a call has done its work, and an error here does not fail the call.

    K:failing  zset  score: number of a message; member: "number:first delivered (ms) or nothing:error";
                     of messages that failed and are redelivered, the 1000 newest
    K:causes   hash  number of a dead letter -> "first delivered (ms) or nothing:error"

  An error is "type\ntext". Entries of messages that succeeded later stay in K:failing until newer ones
  replace them, so that an ack need not look for them.
]]
local failures = { most = 1000 }

function failures.entry(queue, number)
  local found = redis.pcall('ZRANGE', queue.key .. ':failing', number, number, 'BYSCORE')
  return not refused(found) and found[1] or nil
end

-- Returns "first delivered:error" of an entry.
function failures.without_number(entry)
  return string.sub(entry, string.find(entry, ':', 1, true) + 1)
end

-- Records a failed attempt: the number of the message, the bundle in which it was delivered, the error, and
-- whether the message is a dead letter now.
function failures.note(queue, note)
  local before = failures.entry(queue, note.number)
  local first = before and string.match(before, '^%d+:(%d*):') or ''
  -- A bundle has the microsecond of its delivery as its number.
  if first == '' and note.bundle.attempt == 1 then first = digits(math.floor(tonumber(note.bundle.number) / 1000)) end
  if before then redis.pcall('ZREM', queue.key .. ':failing', before) end
  local known = first .. ':' .. note.error
  if note.dead then
    redis.pcall('HSET', queue.key .. ':causes', note.number, known)
  else
    redis.pcall('ZADD', queue.key .. ':failing', note.number, note.number .. ':' .. known)
  end
end

function failures.note_all(queue, notes)
  redis.pcall('ZREMRANGEBYRANK', queue.key .. ':failing', 0, -1 - failures.most)
  for _, note in ipairs(notes) do failures.note(queue, note) end
end

-- Forgets failures of messages that are gone, or count as never tried.
function failures.forget(queue, numbers)
  for i = 1, #numbers, 1000 do
    redis.pcall('HDEL', queue.key .. ':causes', unpack(numbers, i, math.min(i + 999, #numbers)))
  end
  if redis.pcall('EXISTS', queue.key .. ':failing') ~= 1 then return end
  for _, number in ipairs(numbers) do
    redis.pcall('ZREMRANGEBYSCORE', queue.key .. ':failing', number, number)
  end
end

--[[
  Pending messages of a group: handed out, not yet acknowledged, kept as ranges.

    G:pending  zset  score: start offset; member: "start:end:attempt:expire"
    G:due      zset  score: when the range must be looked at again; member: start
    G:expired  zset  score and member: start of a range that waits for the dead letters

  A range is found by offset or by time in O(log n), whatever the order of deadlines. `attempt` is
  how often it was handed out; `expire` is 0 for never. Ranges never overlap.

  G field due: no range comes due earlier; 0 or missing when that is not known. Handing out new
  messages then need not look for old ones.

  G field handed: what was put into boxes and is not booked yet, "waiter:time:first:last:due:expire "
  for each, in the order of offsets. The call that wakes a member leaves its range there, which costs
  it nothing beyond what it writes anyway; the next call that looks at what is pending books it.
]]
local NEVER = 0

-- Returns when the range comes due.
local function put_pending(G, first, last, attempt, due, expire)
  if expire ~= NEVER then due = math.min(due, expire) end
  local start = digits(first)
  redis.call('ZADD', G .. ':pending', start,
    table.concat({ start, digits(last), digits(attempt), digits(expire) }, ':'))
  redis.call('ZADD', G .. ':due', digits(due), start)
  return due
end

-- Makes pending ranges of what lies in boxes, and notes whose boxes these are.
local function book(G, handed)
  if handed == '' then return end
  for waiter, time, first, last, due, expire in string.gmatch(handed, HANDED) do
    put_pending(G, tonumber(first), tonumber(last), 1, tonumber(due), tonumber(expire))
    redis.call('ZADD', G .. ':served', time, waiter)
  end
  redis.call('HDEL', G, 'handed')
end

-- Opens a group for a call that looks at what is pending; returns its next offset, or nil when
-- there is no such group.
local function open_group(G)
  local f = redis.call('HMGET', G, 'next', 'handed', 'format')
  check_format(f[3])
  book(G, f[2] or '')
  return tonumber(f[1] or nil)
end

local function add_pending(G, first, last, attempt, due, expire)
  put_pending(G, first, last, attempt, due, expire)
  redis.call('HDEL', G, 'due')
end

local function parse_pending(member)
  local first, last, attempt, expire = string.match(member, '^(%d+):(%d+):(%d+):(%d+)$')
  return {
    member = member, first = tonumber(first), last = tonumber(last),
    attempt = tonumber(attempt), expire = tonumber(expire),
  }
end

local function pending_at(G, start)
  local found = redis.call('ZRANGE', G .. ':pending', start, start, 'BYSCORE', 'LIMIT', 0, 1)
  return found[1] and parse_pending(found[1])
end

local function drop_pending(G, range)
  local start = digits(range.first)
  redis.call('ZREM', G .. ':pending', range.member)
  redis.call('ZREM', G .. ':due', start)
  redis.call('ZREM', G .. ':expired', start)
end

local function mark_expired(G, start)
  redis.call('ZREM', G .. ':due', start)
  redis.call('ZADD', G .. ':expired', start, start)
end

-- Takes the offsets first..last out of the pending ranges, splitting those that reach beyond.
-- Returns the parts taken out and how many offsets they hold. What is left of a split range
-- keeps its deadline; a range that waits for the dead letters is only touched when asked, and
-- what is left of it waits on.
local function cut_pending(G, first, last, with_expired)
  local parts, taken, at = {}, 0, first
  local before = redis.call('ZRANGE', G .. ':pending', '(' .. digits(first), '-inf', 'BYSCORE',
    'REV', 'LIMIT', 0, 1)
  local queue = {}
  if before[1] then queue[1] = parse_pending(before[1]) end
  while true do
    local more = redis.call('ZRANGE', G .. ':pending', digits(at), digits(last), 'BYSCORE',
      'LIMIT', 0, 128)
    for _, member in ipairs(more) do table.insert(queue, parse_pending(member)) end
    for _, range in ipairs(queue) do
      at = math.max(at, range.first + 1)
      local low, high = math.max(range.first, first), math.min(range.last, last)
      local due = redis.call('ZSCORE', G .. ':due', digits(range.first))
      if low <= high and (due or with_expired) then
        drop_pending(G, range)
        if range.first < low then
          add_pending(G, range.first, low - 1, range.attempt, tonumber(due or 0), range.expire)
          if not due then mark_expired(G, digits(range.first)) end
        end
        if high < range.last then
          add_pending(G, high + 1, range.last, range.attempt, tonumber(due or 0), range.expire)
          if not due then mark_expired(G, digits(high + 1)) end
        end
        table.insert(parts, {
          first = low, last = high, attempt = range.attempt, expire = range.expire, due = tonumber(due or 0),
        })
        taken = taken + high - low + 1
      end
    end
    if #more < 128 then break end
    queue = {}
  end
  return parts, taken
end

-- Messages that a reader will never get: counted, and the latest such ranges kept word for word.
local function record_gap(G, first, last)
  redis.call('HINCRBY', G, 'missed', last - first + 1)
  local gaps = redis.call('HGET', G, 'gaps') or ''
  gaps = gaps .. digits(first) .. '-' .. digits(last) .. ' '
  local _, n = string.gsub(gaps, ' ', '')
  if n > 16 then gaps = string.gsub(gaps, '^%S+ ', '') end
  redis.call('HSET', G, 'gaps', gaps)
end

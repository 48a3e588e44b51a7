--[[
  Handing out: which messages the next reader of a group gets, and serving blocked members.

  A member that finds nothing registers as a waiter and blocks on a list of its own, its box. The
  call that makes messages available hands them to the waiter that has waited longest, in the same
  atomic step, and puts the claim in its box; the server then wakes it. What lies in a box was
  never seen by anyone: when its owner dies, it is taken back and handed to somebody else.

    G:waiters        zset  who waits; score: its turn
    G:served         zset  who may have something in its box; score: since when
    G field w:<waiter>     "until:count:retry:expire:number of its read"
    G:box:<waiter>   list  "<r|n>first:last:attempt,...\n[time:tag length:checksum\n<tag><value>]" or "poke"

  The call of a writer passes through here before it is answered: every redis.call less counts.
]]
local EXPIRE_STEPS = 1024
local WAITER_GRACE_MS = 1000
local BOX_GRACE_MS = 2000
local INLINE_BYTES = 4096
local HANDED_BYTES = 1024
-- How many waiters one call looks at; the rest are served by those that follow.
local SERVE_WAITERS = 64

local function expire_range(G, range, group)
  local start = digits(range.first)
  if group.dead_letters ~= '' then
    redis.call('ZREM', G .. ':due', start)
    redis.call('ZADD', G .. ':expired', start, start)
  else
    drop_pending(G, range)
    local n = range.last - range.first + 1
    group.pending = redis.call('HINCRBY', G, 'pending', 0 - n)
    redis.call('HINCRBY', G, 'expired', n)
  end
end

-- Drops what was evicted under a pending range. Returns the rest, or nil when nothing is left.
local function without_evicted(G, range, stream, group)
  if range.first >= stream.first then return range end
  local gone = math.min(range.last, stream.first - 1)
  record_gap(G, range.first, gone)
  local due = tonumber(redis.call('ZSCORE', G .. ':due', digits(range.first)))
  drop_pending(G, range)
  group.pending = redis.call('HINCRBY', G, 'pending', 0 - (gone - range.first + 1))
  if gone == range.last then return nil end
  add_pending(G, gone + 1, range.last, range.attempt, due, range.expire)
  return pending_at(G, digits(gone + 1))
end

-- wish: what a waiter asked for, when the caller names one.
local function load_group(G, waiter)
  local f = redis.call('HMGET', G, 'next', 'pending', 'max_pending', 'dead_letters', 'due', 'handed',
    'format', 'w:' .. (waiter or ''))
  check_format(f[7])
  if not f[1] then return nil end
  return {
    next = tonumber(f[1]), pending = tonumber(f[2]), max_pending = tonumber(f[3]), dead_letters = f[4],
    due = tonumber(f[5] or 0), handed = f[6] or '', wish = f[8],
  }
end

local function book_group(G, group)
  book(G, group.handed)
  group.handed = ''
end

local function no_group()
  return redis.error_reply('HW_NO_GROUP')
end

-- New messages up to `last` are handed out. With retry they are pending from now on: those for a
-- blocked member are booked by whoever looks next, for a writer waits meanwhile.
local function hand_out_new(G, group, now, last, retry, expire, bag)
  local first = group.next
  group.next = last + 1
  if not retry then return redis.call('HSET', G, 'next', group.next) end
  local ends, due = expire and now + expire or NEVER, now + retry
  if ends ~= NEVER then due = math.min(due, ends) end
  if group.pending == 0 then
    group.due = due
  elseif group.due > 0 then
    group.due = math.min(group.due, due)
  end
  group.pending = group.pending + last - first + 1
  if bag.waiter and #group.handed < HANDED_BYTES then
    bag.noted = true
    group.handed = group.handed .. table.concat({ bag.waiter, digits(now), digits(first),
      digits(last), digits(due), digits(ends) }, ':') .. ' '
    return redis.call('HSET', G, 'next', digits(group.next), 'pending', digits(group.pending),
      'due', digits(group.due), 'handed', group.handed)
  end
  -- All that is noted goes first: what is noted lies above whatever is booked.
  book_group(G, group)
  put_pending(G, first, last, 1, due, ends)
  redis.call('HSET', G, 'next', digits(group.next), 'pending', digits(group.pending), 'due',
    digits(group.due))
end

-- Chooses up to `count` messages for one reader: first those that are due again, then new ones.
-- With retry they become pending; without, handing them out is all there is.
-- Returns claims as a flat list: first, last, attempt, ...; and whether more is there to hand out.
local function take(K, G, stream, group, now, count, retry, expire, bag)
  local claims, left, steps = {}, count, 0
  local full = false
  if group.pending > 0 and group.due <= now then book_group(G, group) end
  while group.pending > 0 and group.due <= now and left > 0 and not full and steps < EXPIRE_STEPS do
    local due = redis.call('ZRANGE', G .. ':due', '-inf', digits(now), 'BYSCORE', 'LIMIT', 0, 64)
    if #due == 0 then
      group.due = tonumber(redis.call('ZRANGE', G .. ':due', 0, 0, 'WITHSCORES')[2] or 0)
      redis.call('HSET', G, 'due', digits(group.due))
      break
    end
    group.due = 0
    for _, start in ipairs(due) do
      if left <= 0 or full then break end
      steps = steps + 1
      local range = pending_at(G, start)
      if range.expire ~= NEVER and range.expire <= now then
        expire_range(G, range, group)
      else
        range = without_evicted(G, range, stream, group)
        if range then
          local covered, got = collect(K, stream, range.first, range.last, left, bag)
          if covered < range.first then
            full = true
          else
            local old_due = tonumber(redis.call('ZSCORE', G .. ':due', digits(range.first)))
            drop_pending(G, range)
            if covered < range.last then
              add_pending(G, covered + 1, range.last, range.attempt, old_due, range.expire)
            end
            local attempt = range.attempt + 1
            if retry then
              local ends = range.expire
              if ends == NEVER and expire then ends = now + expire end
              add_pending(G, range.first, covered, attempt, now + retry, ends)
            else
              group.pending = redis.call('HINCRBY', G, 'pending', 0 - (covered - range.first + 1))
            end
            local n = #claims
            claims[n + 1], claims[n + 2], claims[n + 3] = range.first, covered, attempt
            left = left - got
          end
        end
      end
    end
  end
  local more_due = #claims > 0 and (left <= 0 or full)
  if group.max_pending > 0 then left = math.min(left, group.max_pending - group.pending) end
  if group.next < stream.first then
    record_gap(G, group.next, stream.first - 1)
    group.next = stream.first
    redis.call('HSET', G, 'next', group.next)
  end
  if left > 0 and not full and group.next <= stream.last then
    local covered = collect(K, stream, group.next, stream.last, left, bag)
    if covered >= group.next then
      local n = #claims
      claims[n + 1], claims[n + 2], claims[n + 3] = group.next, covered, 1
      hand_out_new(G, group, now, covered, retry, expire, bag)
    end
  end
  return claims, more_due or group.next <= stream.last
end

local function box_key(G, waiter)
  return G .. ':box:' .. waiter
end

-- Returns 1 when it was known.
local function forget_waiter(G, waiter)
  redis.call('ZREM', G .. ':waiters', waiter)
  redis.call('ZREM', G .. ':served', waiter)
  return redis.call('HDEL', G, 'w:' .. waiter)
end

-- A claim as text; a lone small message travels with it, which saves its reader a round trip.
local function claim_text(claims, retry, bag)
  local parts = {}
  for i = 1, #claims, 3 do
    parts[#parts + 1] = table.concat(
      { digits(claims[i]), digits(claims[i + 1]), digits(claims[i + 2]) }, ':')
  end
  local text = (retry and 'r' or 'n') .. table.concat(parts, ',') .. '\n'
  local entry = bag.entries[1]
  if #claims == 3 and claims[1] == claims[2] and #bag.nodes == 0 and bag.bytes <= INLINE_BYTES then
    local tag = entry_field(entry, 'k')
    if tag then
      local check = entry_field(entry, 'c')
      text = text .. entry_field(entry, 't') .. ':' .. #tag .. (check and ':' .. check or '') .. '\n'
        .. tag .. entry_field(entry, 'v')
    end
  end
  return text
end

-- Takes the first in line out of it; who is not served then is put back in its place.
local function next_in_line(G)
  local found = redis.call('ZPOPMIN', G .. ':waiters')
  return found[1], found[2]
end

-- Wakes a waiter before its time when something comes due earlier than it planned to look.
local function poke(G, waiter, ends, wants)
  local due = redis.call('ZRANGE', G .. ':due', 0, 0, 'WITHSCORES')[2]
  if due and tonumber(due) < ends then
    redis.call('HSET', G, 'w:' .. waiter, due .. wants)
    redis.call('RPUSH', box_key(G, waiter), 'poke')
  end
end

-- Forgets waiters whose time is over, of up to SERVE_WAITERS from a place in the line on. Those that
-- died leave nobody else to do so, and live ones may stand before them.
local function forget_expired_waiters(G, now, place)
  local waiters = redis.call('ZRANGE', G .. ':waiters', place, place + SERVE_WAITERS - 1)
  if #waiters == 0 then return end
  local fields = {}
  for i, waiter in ipairs(waiters) do fields[i] = 'w:' .. waiter end
  for i, wish in ipairs(redis.call('HMGET', G, unpack(fields))) do
    local ends = wish and tonumber(string.match(wish, '^%d+'))
    if not ends or ends + WAITER_GRACE_MS < now then forget_waiter(G, waiters[i]) end
  end
end

-- Serves the blocked members of one group in turn, as long as there is something to hand out.
-- Returns how many of `room` waiters were not looked at.
local function serve(K, name, stream, now, room)
  local G = group_key(K, name)
  room = room or SERVE_WAITERS
  local waiter, turn = next_in_line(G)
  local group = waiter and load_group(G, waiter)
  while waiter do
    room = room - 1
    local wish = group.wish or redis.call('HGET', G, 'w:' .. waiter)
    group.wish = nil
    local ends, wants = string.match(wish, '^(%d+)(.*)$')
    ends = tonumber(ends)
    if ends + WAITER_GRACE_MS < now then
      forget_waiter(G, waiter)
    else
      local count, retry, expire = string.match(wants, '^:(%d+):(%d*):(%d*):')
      local bag = new_bag(stream, 8388608, nil)
      bag.waiter = waiter
      local claims, more =
        take(K, G, stream, group, now, tonumber(count), tonumber(retry), tonumber(expire), bag)
      if #claims == 0 then
        redis.call('ZADD', G .. ':waiters', turn, waiter)
        book_group(G, group)
        poke(G, waiter, ends, wants)
        return room
      end
      if not bag.noted then redis.call('ZADD', G .. ':served', digits(now), waiter) end
      redis.call('RPUSH', box_key(G, waiter), claim_text(claims, retry ~= '', bag))
      if not more then return room end
    end
    if room <= 0 then return room end
    waiter, turn = next_in_line(G)
  end
  forget_waiting(K, stream, name)
  return room
end

-- Those that are not reached in one call have waited for the next one, and go first in it.
local function serve_all(K, stream, now)
  local room = SERVE_WAITERS
  for name in string.gmatch(stream.waiting, '%S+') do
    if room <= 0 then return end
    room = serve(K, name, stream, now, room)
  end
end

-- Takes back what lies unseen in a box, as if it had never been handed out; returns 1 when there was one.
local function take_back(G, waiter, now)
  local box = box_key(G, waiter)
  for _, text in ipairs(redis.call('LRANGE', box, 0, -1)) do
    local mode, claims = string.match(text, '^([rn])([^\n]*)\n')
    for first, last, attempt in string.gmatch(claims or '', '(%d+):(%d+):(%d+)') do
      first, last, attempt = tonumber(first), tonumber(last), tonumber(attempt)
      if mode == 'r' then
        for _, part in ipairs((cut_pending(G, first, last, false))) do
          -- It may have come due since, and be in other hands by now: then it is theirs.
          if part.attempt == attempt then part.attempt, part.due = attempt - 1, now end
          add_pending(G, part.first, part.last, part.attempt, part.due, part.expire)
        end
      else
        add_pending(G, first, last, attempt - 1, now, NEVER)
        redis.call('HINCRBY', G, 'pending', last - first + 1)
      end
    end
  end
  forget_waiter(G, waiter)
  return redis.call('DEL', box)
end

-- Looks after waiters that were served a while ago and have not come back since.
local function take_back_old_boxes(G, now)
  local old = redis.call('ZRANGE', G .. ':served', '-inf', digits(now - BOX_GRACE_MS), 'BYSCORE',
    'LIMIT', 0, 16)
  for _, waiter in ipairs(old) do take_back(G, waiter, now) end
  return #old > 0
end

local function drop_boxes(G)
  for _, waiter in ipairs(redis.call('ZRANGE', G .. ':served', 0, -1)) do
    redis.call('DEL', box_key(G, waiter))
    forget_waiter(G, waiter)
  end
end

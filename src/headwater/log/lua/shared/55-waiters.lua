--[[
  Blocked members of a group.

  A member that finds nothing registers as a waiter and blocks on a list of its own, its box. The
  call that makes messages available delivers them to the waiter that has waited longest, in the same
  atomic step, and puts the claim in its box; the server then wakes it. No member has seen what is in a
  box: if its owner dies, it is taken back and delivered to another member.

    G:waiters        zset  waiters; score: turn
    G:served         zset  waiters that may have messages in their box; score: since when
    G field w:<waiter>     "until:count:retry:expire:number of its read"
    G:box:<waiter>   list  "<r|n>first:last:attempt,...\n[time-checksum:tag length\n<tag><value>]" or "poke";
                           with headers "time-checksum:tag length:headers length\n<tag><headers><value>"
]]
local WAITER_GRACE_MS = 1000
local BOX_GRACE_MS = 2000
local INLINE_BYTES = 4096
-- How many waiters one call looks at; later calls serve the rest.
local SERVE_WAITERS = 64
-- What a waiter is given at most: its bytes, and those that they have unpacked.
local WAITER_BYTES = '8388608:4194304'

local function box_key(G, waiter)
  return G .. ':box:' .. waiter
end

-- Returns 1 when the waiter was registered.
local function forget_waiter(G, waiter)
  redis.call('ZREM', G .. ':waiters', waiter)
  redis.call('ZREM', G .. ':served', waiter)
  return redis.call('HDEL', G, 'w:' .. waiter)
end

-- Returns a claim as text; a lone small message is included, which saves its reader a round trip.
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
      local sizes, headers = #tag, ''
      if entry[2][1] == 'h' then
        headers = entry[2][2]
        sizes = sizes .. ':' .. #headers
      end
      text = text .. entry_field(entry, 't') .. ':' .. sizes .. '\n' .. tag .. headers .. entry_field(entry, 'v')
    end
  end
  return text
end

-- Takes back claims that no member has seen, as if they had never been delivered.
local function return_claims(K, name, group, claims, retry, now)
  local G = group_key(K, name)
  book_group(G, group)
  for i = 1, #claims, 3 do
    local first, last, attempt = claims[i], claims[i + 1], claims[i + 2]
    if retry then
      local found = find_ranges(G, first, last, STEP_RANGES)
      local old, new = {}, {}
      for _, range in ipairs(found) do
        -- It may have become due since and be with another member by now: then it belongs to that
        -- one.
        if range.attempt == attempt and range.first >= first and range.last <= last and not range.waits then
          local back = part_of(range, range.first, range.last)
          back.attempt, back.due = attempt - 1, now
          old[#old + 1], new[#new + 1] = range, back
        end
      end
      if old[1] then replace_ranges(G, group, old, new) end
      lanes.set_time(G, group, flights.spans_of(new), 0)
    else
      replace_ranges(G, group, {}, {
        { first = first, last = last, attempt = attempt - 1, due = now, expire = NEVER },
      })
    end
    flights.land(G, group, { { first, last } })
  end
  save_group(G, group)
end

-- Takes the first waiter out of the line; if it is not served, the caller puts it back in its place.
local function next_in_line(G)
  local found = redis.call('ZPOPMIN', G .. ':waiters')
  return found[1], found[2]
end

-- Wakes a waiter early when a message becomes due before the waiter planned to look again.
local function poke(G, stream, group, now, waiter, ends, wants)
  local due = flights.next_look(G, stream, group, now)
  if due and tonumber(due) < ends then
    redis.call('HSET', G, 'w:' .. waiter, digits(due) .. wants)
    redis.call('RPUSH', box_key(G, waiter), 'poke')
  end
end

-- Forgets waiters whose time is over, of up to SERVE_WAITERS from a place in the line on. No other call
-- removes waiters that died behind live ones.
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

-- Delivers messages to one waiter. Returns 'served', 'last' when there is nothing left for others, or
-- 'nothing' when there was none for it.
local function serve_waiter(K, name, stream, group, now, waiter, wish)
  local G = group_key(K, name)
  local ends, count, retry, expire = string.match(wish, '^(%d+):(%d+):(%d*):(%d*):')
  local bag = new_bag(stream, WAITER_BYTES, nil)
  bag.waiter = waiter
  local claims, more =
    take(K, G, stream, group, now, tonumber(count), tonumber(retry), tonumber(expire), bag)
  if #claims == 0 then
    book_group(G, group)
    save_group(G, group)
    poke(G, stream, group, now, waiter, tonumber(ends), string.match(wish, '^%d+(.*)$'))
    if not group.look and lanes.unknown(G, stream, group) > 0 and redis.call('LLEN', box_key(G, waiter)) == 0 then
      redis.call('RPUSH', box_key(G, waiter), 'poke')
    end
    return 'nothing'
  end
  local fault = refused(redis.pcall('RPUSH', box_key(G, waiter), claim_text(claims, retry ~= '', bag)))
  if fault then
    afterwards(lower_position, K, name, claims[1])
    return_claims(K, name, group, claims, retry ~= '', now)
    error(fault)
  end
  if not bag.noted then redis.call('ZADD', G .. ':served', digits(now), waiter) end
  return more and 'served' or 'last'
end

-- Serves the blocked members of one group in turn, as long as there is something to deliver. Returns how many
-- of `room` waiters are left to look at, where a group without waiters counts as one; and whether no member
-- waits any more, which the caller records.
local function serve_group(K, name, stream, now, room)
  local G = group_key(K, name)
  local waiter, turn = next_in_line(G)
  local group = waiter and open_group(G, stream, 'w:' .. waiter)
  if not group then return room - 1, true end
  if group.max_pending < 0 then
    redis.call('ZADD', G .. ':waiters', turn, waiter)
    return room - 1
  end
  while waiter do
    room = room - 1
    local wish = group.wish or redis.call('HGET', G, 'w:' .. waiter)
    group.wish = nil
    local ends = wish and tonumber(string.match(wish, '^%d+'))
    if not ends or ends + WAITER_GRACE_MS < now then
      forget_waiter(G, waiter)
    else
      local served, outcome = pcall(serve_waiter, K, name, stream, group, now, waiter, wish)
      if not served or outcome == 'nothing' then redis.call('ZADD', G .. ':waiters', turn, waiter) end
      if not served then error(outcome) end
      if outcome ~= 'served' then return room end
    end
    if room <= 0 then return room end
    waiter, turn = next_in_line(G)
  end
  return room, true
end

local function serve(K, name, stream, now)
  if not is_waiting(stream, name) then return end
  local _, nobody = afterwards(serve_group, K, name, stream, now or server_ms(), SERVE_WAITERS)
  if nobody then afterwards(forget_waiting, K, stream, name) end
end

-- Groups that are not reached in one call are served first by the next one.
local function serve_all(K, stream, now)
  if stream.waiting == '' then return end
  local room, behind, kept, forgotten = SERVE_WAITERS, 1, {}, false
  for name, after in string.gmatch(stream.waiting, '(%S+) ()') do
    if room <= 0 then break end
    local left, nobody = afterwards(serve_group, K, name, stream, now, room)
    room, behind = left or room - 1, after
    if nobody then forgotten = true else kept[#kept + 1] = name .. ' ' end
  end
  local rest = string.sub(stream.waiting, behind)
  if forgotten or rest ~= '' then
    afterwards(set_waiting, K, stream, rest .. table.concat(kept))
  end
end

-- Takes back unseen claims from a box, as if they had never been delivered; returns 1 when there was a box.
local function take_back(K, name, group, waiter, now)
  local G = group_key(K, name)
  local box = box_key(G, waiter)
  book_group(G, group)
  local found = {}
  for _, text in ipairs(redis.call('LRANGE', box, 0, -1)) do
    local mode, head = string.match(text, '^([rn])([^\n]*)\n')
    local claims = { mode = mode }
    for number in string.gmatch(head or '', '%d+') do claims[#claims + 1] = tonumber(number) end
    if claims[1] then
      lower_position(K, name, claims[1])
      found[#found + 1] = claims
    end
  end
  -- The same claims must not be taken back twice.
  local boxed = redis.call('DEL', box)
  for _, claims in ipairs(found) do return_claims(K, name, group, claims, claims.mode == 'r', now) end
  forget_waiter(G, waiter)
  return boxed
end

-- Takes back the boxes of waiters that were served a while ago and have not returned since.
local function take_back_old_boxes(K, name, group, now)
  local G = group_key(K, name)
  local oldest = redis.call('ZRANGE', G .. ':served', 0, 0, 'WITHSCORES')
  if not oldest[2] or to_number(oldest[2]) > now - BOX_GRACE_MS then return end
  local old = redis.call('ZRANGE', G .. ':served', '-inf', now - BOX_GRACE_MS, 'BYSCORE', 'LIMIT', 0, 16)
  for _, waiter in ipairs(old) do take_back(K, name, group, waiter, now) end
end

-- Drops boxes with their claims, a limited number in one call; returns whether all are gone.
local function drop_boxes(G)
  local served = redis.call('ZRANGE', G .. ':served', 0, STEP_RANGES - 1)
  for _, waiter in ipairs(served) do
    redis.call('DEL', box_key(G, waiter))
    forget_waiter(G, waiter)
  end
  return #served < STEP_RANGES
end

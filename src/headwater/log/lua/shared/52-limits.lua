--[[
  Limits of a group: how many messages are in flight, and how fast they are delivered. The format of limits
  and buckets is in store/lua/shared/50-limits.lua; the key of a message is its tag.

    G fields limits, bucket
    G:flying  zset  offset -> its deadline in ms; of a group that limits messages in flight

  A message is in flight from its delivery until it is acknowledged, has failed, was returned or given up, or
  until its deadline passes: then no member is known to have it, and it is due again. So an entry that is left
  by a call that stops half-way ends by itself. Entries are added before a message is delivered, and dropped
  after it is settled: a call that stops in between counts too many, never too few.
]]
-- How many messages one call delivers in a group with limits: each is recorded.
flights.step = 1000
-- How many of the messages that were in flight before there was a limit are counted.
flights.counted_before = 10000

-- Returns how many of `count` messages may be delivered now. When there are none, group.look is the time in
-- ms at which there may be some, even if nothing is settled before.
function flights.room(G, group, now, count, retry)
  local terms, room, look = group.limits, math.min(count, flights.step), nil
  if terms.damaged then limits.refuse() end
  if terms.most and retry then
    redis.call('ZREMRANGEBYSCORE', G .. ':flying', '-inf', digits(now))
    local free = terms.most - redis.call('ZCARD', G .. ':flying')
    if free <= 0 then look = tonumber(redis.call('ZRANGE', G .. ':flying', 0, 0, 'WITHSCORES')[2]) end
    room = math.min(room, math.max(free, 0))
  end
  if terms.rate then
    local us = server_us()
    local full = limits.full_at(terms.rate, group.bucket, us)
    if full < group.bucket then change(group, 'bucket', full) end
    local tokens = limits.tokens(terms.rate, full, us)
    if tokens == 0 then
      local ready = now + math.ceil(limits.wait(terms.rate, group.bucket, us, count) / 1000)
      look = math.max(look or 0, ready)
    end
    room = math.min(room, tokens)
  end
  group.look = count > 0 and look or nil
  return room
end

-- Returns when a reader that found nothing looks again, in ms; nil when nothing is known to become due.
function flights.next_look(G, stream, group, now)
  local due = tonumber(redis.call('ZRANGE', G .. ':due', 0, 0, 'WITHSCORES')[2] or nil)
  if not group.look then return due end
  if group.next <= stream.last or due and due <= now then return group.look end
  return due and math.max(due, group.look)
end

-- Returns the same for one of several readers that wait for tokens, which come one after the other.
function flights.turn(G, group, look, waiter)
  local rate = group.limits.rate
  if not look or not rate then return look end
  local place = redis.call('ZRANK', G .. ':waiters', waiter) or redis.call('ZCARD', G .. ':waiters')
  return look + math.ceil(place * rate.step / 1000)
end

-- Calls back with words for a sorted set, { score, offset, ... } or { offset, ... }, a limited number at a
-- time.
function flights.in_steps(spans, score, visit)
  local words, n = {}, 0
  for _, span in ipairs(spans) do
    for offset = span[1], span[2] do
      if score then
        n = n + 1
        words[n] = score
      end
      n = n + 1
      words[n] = offset
      if n >= 2 * flights.step then
        visit(words)
        words, n = {}, 0
      end
    end
  end
  if n > 0 then visit(words) end
end

function flights.spans_of(ranges)
  local spans = {}
  for i, range in ipairs(ranges) do spans[i] = { range.first, range.last } end
  return spans
end

-- Counts messages as in flight until a time, also those that are counted until another time.
function flights.hold(G, group, spans, deadline)
  if not group.limits or not group.limits.most then return end
  flights.in_steps(spans, deadline, function(words) redis.call('ZADD', G .. ':flying', unpack(words)) end)
end

-- Counts what is about to be delivered: claims, and new messages from `first` up to `covered`.
function flights.begin(G, group, plan, first, covered, now, retry)
  local spans, count, claims = {}, 0, plan and plan.claims or {}
  for i = 1, #claims, 3 do spans[#spans + 1] = { claims[i], claims[i + 1] } end
  if group.noted and plan then lanes.begin(G, group, plan, spans, retry and now + retry) end
  if not group.limits then return end
  if covered >= first then spans[#spans + 1] = { first, covered } end
  for _, span in ipairs(spans) do count = count + span[2] - span[1] + 1 end
  if count == 0 then return end
  if retry then flights.hold(G, group, spans, now + retry) end
  local rate = group.limits.rate
  if rate then change(group, 'bucket', limits.spend(rate, group.bucket, server_us(), count)) end
end

-- Messages are no longer in flight. If that fails, they count until their deadline.
function flights.land(G, group, spans)
  if group.limits and group.limits.most then afterwards(flights.take_down, G, spans) end
end

function flights.take_down(G, spans)
  flights.in_steps(spans, nil, function(words) remove_members(G .. ':flying', words) end)
end

-- Returns how many messages are in flight, or nil when that is not limited.
function flights.count(G, group)
  if not group.limits or not group.limits.most then return nil end
  return redis.call('ZCOUNT', G .. ':flying', '(' .. digits(server_ms()), '+inf')
end

-- Counts messages that were delivered before there was a limit, as far as they are known. A failed message
-- cannot be told apart, so it counts until its retry is due.
function flights.count_before(G, group, now)
  local due = redis.call('ZRANGE', G .. ':due', '(' .. digits(now), '(' .. digits(PARKED), 'BYSCORE',
    'LIMIT', 0, STEP_RANGES, 'WITHSCORES')
  local left = flights.counted_before
  for i = 1, #due, 2 do
    local range = pending_at(G, due[i])
    if range and left > 0 then
      local last = math.min(range.last, range.first + left - 1)
      flights.hold(G, group, { { range.first, last } }, tonumber(due[i + 1]))
      left = left - (last - range.first + 1)
    end
  end
end

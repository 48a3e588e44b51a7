--[[
  Limits of a queue: how many messages are in flight, and how fast they are delivered. The format of limits
  and buckets is in store/lua/shared/50-limits.lua. Messages of a queue have no key.

    K fields limits, bucket

  A message that must be acknowledged is in flight as long as it is unacked and its deadline has not passed. In
  a queue with limits nothing is reserved for blocked consumers: the first in line is woken when there is
  something for it, and asks again.
]]
-- Processes deadlines that have passed: their messages are no longer in flight. Returns whether there may be
-- more of them.
function quota.lapse(queue)
  local more = false
  for _, priority in ipairs(priorities_of(queue)) do
    more = select(2, lapse(queue, priority, LAPSE_STEPS)) or more
  end
  find_soonest(queue)
  return more
end

-- Returns how many of `count` messages may be delivered now. When there are none, queue.look is the time in
-- ms at which there may be some, even if nothing is settled before.
function quota.room(queue, count, ack_ms)
  local terms, room, look = queue.limits, count, nil
  if terms.damaged then limits.refuse() end
  if terms.most and ack_ms then
    room = math.min(room, math.max(terms.most - queue.unacked, 0))
    if room == 0 then look = queue.soonest end
  end
  if terms.rate then
    local full = limits.full_at(terms.rate, queue.bucket, queue.us)
    if full < queue.bucket then
      queue.bucket = full
      redis.call('HSET', queue.key, 'bucket', full)
    end
    local tokens = limits.tokens(terms.rate, queue.bucket, queue.us)
    if tokens == 0 then
      look = math.max(look or 0, queue.now + math.ceil(limits.wait(terms.rate, queue.bucket, queue.us, count) / 1000))
    end
    room = math.min(room, tokens)
  end
  queue.look = look
  return room
end

-- Takes the messages of a pop, within the limits; returns whether there may be more, for which this call had
-- no time.
function quota.take(queue, pop)
  local busy = may_have_lapsed(queue) and quota.lapse(queue) or false
  local wanted, room = pop.room, quota.room(queue, pop.room, pop.ack_ms)
  pop.room = room
  if room > 0 then
    busy = take_by_priority(queue, pop, false) or busy
    local taken, rate = room - pop.room, queue.limits.rate
    if rate and taken > 0 then
      local before = queue.bucket
      queue.bucket = limits.spend(rate, before, queue.us, taken)
      redis.call('HSET', queue.key, 'bucket', queue.bucket)
      note_undo('hset', queue.key, 'bucket', before)
    end
  end
  pop.room = wanted - room + pop.room
  return busy
end

local function has_backlog(queue)
  return queue.retry + queue.delayed > 0 or count_listed(queue) > 0
end

-- Wakes the first in line, unless it is the caller, when there is something for it.
function quota.wake(queue, caller)
  if queue.paused or not has_backlog(queue) then return end
  local waiter, _, count, ack = first_in_line(queue)
  if not waiter or waiter == caller or quota.room(queue, count, ack) == 0 then return end
  if redis.call('LLEN', waiter_box(queue, waiter)) == 0 then put_into_box(queue, waiter, 'poke') end
end

-- Returns in how many ms a consumer that found nothing looks again, or -1. Consumers that wait for tokens
-- look one after the other.
function quota.ms_to_next(queue, waiter)
  local due = ms_to_next(queue)
  if queue.paused or not queue.look or due < 0 and not has_backlog(queue) then return due end
  local wait = math.max(queue.look - queue.now, 1)
  if queue.limits.rate and waiter ~= '' then
    local line = queue.key .. ':waiters'
    local place = redis.call('ZRANK', line, waiter) or redis.call('ZCARD', line)
    wait = wait + math.ceil(place * queue.limits.rate.step / 1000)
  end
  return count_listed(queue) > 0 and wait or math.max(due, wait)
end

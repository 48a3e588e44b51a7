--[[
  Blocked consumers: the one that has waited longest is served first.

  A consumer that finds nothing registers as a waiter and blocks on a list of its own, its box. The
  call that makes messages available reserves them for the first waiter, in the same atomic step,
  and puts the names of their bundles into its box; the server then wakes it, and it fetches them.
  A reserved bundle is redelivered in two seconds: if its waiter died, another consumer gets it then, and
  nothing has to be taken back. No consumer has seen it, so its attempt is not counted.

  A waiter ends with its reader: one that is cancelled leaves, and its reserved messages go to the next. One
  that was killed is skipped when its time is over, and the two sets expire when no consumer has waited for
  that long, so a queue that was never pushed to leaves nothing behind.

    K:waiters            zset  waiter -> its turn
    K:looks              zset  waiter -> the time in ms at which it looks again
    K:box:<waiter>       list  names of bundles, with spaces between, twice: the second stays when the
                               reader that took the first is disconnected; or "poke": look again

  A waiter is "count:ack ms or '':name".
]]
local WAIT_MS = 1000
local WAITER_GRACE_MS = 1000
local BOX_MS = 10000
-- How many waiters are served by one call, with how many messages, and how many are forgotten.
local SERVE_STEPS = 64
local SERVE_MESSAGES = 1000
local SILENT_STEPS = 500
local HEAD_STEPS = 16

local function waiter_box(queue, waiter)
  return queue.key .. ':box:' .. waiter
end

local function forget_queue_waiters(queue, ...)
  redis.call('ZREM', queue.key .. ':waiters', ...)
  redis.call('ZREM', queue.key .. ':looks', ...)
end

-- Forgets waiters that have not looked again when they planned to, a limited number of them.
local function forget_silent(queue, most)
  local silent = redis.call('ZRANGE', queue.key .. ':looks', '-inf', queue.now - WAITER_GRACE_MS - 1,
    'BYSCORE', 'LIMIT', 0, most)
  if #silent > 0 then forget_queue_waiters(queue, unpack(silent)) end
end

-- Returns the first live waiter in line, when it plans to look again, and what it asked for. Nil when there
-- is none, or when this call has skipped enough dead ones.
local function first_in_line(queue)
  if queue.waited < queue.now then return nil end
  for step = 1, HEAD_STEPS do
    local waiter = redis.call('ZRANGE', queue.key .. ':waiters', 0, 0)[1]
    if not waiter then
      queue.waited = 0
      return nil
    end
    local looks = tonumber(redis.call('ZSCORE', queue.key .. ':looks', waiter) or nil)
    local count, ack = string.match(waiter, '^(%d+):(%d*):')
    if count and looks and looks + WAITER_GRACE_MS >= queue.now then
      return waiter, looks, tonumber(count), tonumber(ack)
    end
    forget_queue_waiters(queue, waiter)
    if step == 1 then forget_silent(queue, SILENT_STEPS) end
  end
end

-- Registers a waiting consumer, and when it looks again; until then it is in line.
local function register_for_turn(queue, waiter, known, wait)
  local line, looks = queue.key .. ':waiters', queue.key .. ':looks'
  if not known or not redis.call('ZSCORE', line, waiter) then
    forget_silent(queue, HEAD_STEPS)
    local last = redis.call('ZRANGE', line, -1, -1, 'WITHSCORES')[2]
    redis.call('ZADD', line, tonumber(last or 0) + 1, waiter)
  end
  redis.call('ZADD', looks, queue.now + wait, waiter)
  local lives = math.max(wait, WAIT_MS) + WAITER_GRACE_MS
  redis.call('PEXPIRE', line, lives)
  redis.call('PEXPIRE', looks, lives)
  queue.waited = math.max(queue.waited, queue.now + lives)
end

local function put_into_box(queue, waiter, ...)
  redis.call('RPUSH', waiter_box(queue, waiter), ...)
  redis.call('PEXPIRE', waiter_box(queue, waiter), BOX_MS)
end

-- Serves waiters in turn, as long as there is something for them and the call is short; stops before
-- `caller`. A waiter that is not reached is served by the next call, or looks again by itself.
local function serve_waiters(queue, caller)
  unserved[queue.key] = nil
  if queue.limits then return quota.wake(queue, caller) end
  if queue.paused then return end
  local messages = SERVE_MESSAGES
  for _ = 1, SERVE_STEPS do
    local waiter, _, count, ack = first_in_line(queue)
    if not waiter or waiter == caller then return end
    local pop, names = new_pop(count, ack, true), {}
    take(queue, pop)
    if #pop == 0 then return end
    for i = 1, #pop, 3 do names[#names + 1] = pop[i] end
    local text = table.concat(names, ' ')
    put_into_box(queue, waiter, text, text)
    forget_queue_waiters(queue, waiter)
    messages = messages - count + pop.room
    if messages <= 0 then break end
  end
  unserved[queue.key] = true
end

-- Wakes the first waiter when a message becomes due before the waiter planned to look again.
local function poke_waiter(queue, due)
  local waiter, looks = first_in_line(queue)
  if waiter and due < looks then
    redis.call('ZADD', queue.key .. ':looks', due, waiter)
    put_into_box(queue, waiter, 'poke')
  end
end

-- Empties the box of a waiter; returns the names of bundles, '' when there are none.
local function empty_box(queue, waiter)
  local box = waiter_box(queue, waiter)
  while true do
    local text = redis.call('LPOP', box)
    if text ~= 'poke' then
      if text then redis.call('UNLINK', box) end
      return text or ''
    end
  end
end

-- Returns in how many ms the next message is due, or -1; while paused none is, and the call that ends the
-- pause wakes the waiters.
local function ms_to_next(queue)
  if queue.paused then return -1 end
  local earliest
  for _, priority in ipairs(priorities_of(queue)) do
    for _, set in ipairs({ 'unacked', 'retry', 'delayed' }) do
      local score = queue[set] > 0 and redis.call('ZRANGE', set_key(queue, set, priority), 0, 0, 'WITHSCORES')[2]
      score = tonumber(score or nil)
      if score and (not earliest or score < earliest) then earliest = score end
    end
  end
  return earliest and math.max(earliest - queue.now, 0) or -1
end

--[[
  Blocked consumers: who waits longest is served first.

  A consumer that finds nothing registers as a waiter and blocks on a list of its own, its box. The
  call that makes messages available reserves them for the first waiter, in the same atomic step,
  and puts the names of their bundles into its box; the server then wakes it, and it fetches them.
  A reserved bundle is one that is redelivered in two seconds: if its waiter died, somebody else gets
  it then, and nothing need be taken back. It was seen by nobody, so its attempt is not counted.

    K:waiters            zset  waiter -> its turn
    K field w:<waiter>   "until:count:ack ms or ''"
    K:box:<waiter>       list  names of bundles, with spaces between; or "poke": look again
]]
local WAITER_GRACE_MS = 1000
local BOX_MS = 10000

local function waiter_box(queue, waiter)
  return queue.key .. ':box:' .. waiter
end

local function forget_queue_waiter(queue, waiter)
  redis.call('ZREM', queue.key .. ':waiters', waiter)
  redis.call('HDEL', queue.key, 'w:' .. waiter)
end

-- Returns the first in line that still lives, when it plans to look again, and what it asked for.
local function first_in_line(queue)
  while queue.waited >= queue.now do
    local waiter = redis.call('ZRANGE', queue.key .. ':waiters', 0, 0)[1]
    if not waiter then
      queue.waited = 0
      return nil
    end
    local ends, count, ack =
      string.match(redis.call('HGET', queue.key, 'w:' .. waiter) or '', '^(%d+):(%d+):(%d*)$')
    if ends and tonumber(ends) + WAITER_GRACE_MS >= queue.now then
      return waiter, tonumber(ends), tonumber(count), ack
    end
    forget_queue_waiter(queue, waiter)
  end
end

local function put_into_box(queue, waiter, text)
  redis.call('RPUSH', waiter_box(queue, waiter), text)
  redis.call('PEXPIRE', waiter_box(queue, waiter), BOX_MS)
end

-- Serves waiters in turn, as long as there is something for them; stops before `caller`.
local function serve_waiters(queue, caller)
  if queue.paused then return end
  while true do
    local waiter, _, count, ack = first_in_line(queue)
    if not waiter or waiter == caller then return end
    local pop, names = new_pop(count, tonumber(ack), true), {}
    take(queue, pop)
    if #pop == 0 then return end
    for i = 1, #pop, 3 do names[#names + 1] = pop[i] end
    put_into_box(queue, waiter, table.concat(names, ' '))
    forget_queue_waiter(queue, waiter)
  end
end

-- Wakes the first waiter when something comes due before it planned to look again.
local function poke_waiter(queue, due)
  local waiter, ends, count, ack = first_in_line(queue)
  if waiter and due < ends then
    redis.call('HSET', queue.key, 'w:' .. waiter, digits(due) .. ':' .. count .. ':' .. ack)
    put_into_box(queue, waiter, 'poke')
  end
end

-- Returns in how many ms something comes due, or -1; while paused nothing does, and whoever ends
-- the pause wakes the waiters.
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

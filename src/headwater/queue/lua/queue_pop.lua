--[[
  hw_queue_pop: deliver messages to one consumer, or register it as waiting.
  With an ack time no other consumer gets them until it is over; without, they are removed from the queue.
  The consumer that has waited longest is served first, and later ones do not overtake it.

  KEYS   1 the queue
  ARGV   1 count   2 ack ms or ''
         3 waiter, "count:ack ms:name"; '' when the caller never blocks
         4 ms it will block now, 0 when it stops
         5 '1' when this waiter has been registered by an earlier call
         6 what it found in its box, or ''
  Reply  { 1 when there may be more, for which this call had no time,
           ms until the next message is due, or -1; also -1 when messages were found,
           messages damaged so far, then for each bundle: its name or '' without ack, attempt, texts }
         A receipt is the name, a point and the number of a message.
]]
-- Returns the messages that were reserved for a waiter, except those that another consumer has by now.
local function collect_reserved(queue, names, pop)
  for name in string.gmatch(names, '%S+') do
    local bundle = parse_name('retry', name)
    local time = bundle and redis.call('ZSCORE', set_key(queue, 'retry', bundle.priority), name)
    if time then take_bundle(queue, pop, bundle, time) end
  end
end

local function pop_messages(queue, count, ack_ms, waiter, wait, known, boxed)
  local pop, more, due, waits = new_pop(count, ack_ms), false, -1, known
  queue.asked = pop.room
  if boxed ~= '' and boxed ~= 'poke' then
    -- The second copy, which is for the case that this reader does not come.
    redis.call('UNLINK', waiter_box(queue, waiter))
  elseif known then
    boxed = empty_box(queue, waiter)
  end
  -- Messages that were reserved before there were limits are redelivered soon.
  if boxed ~= '' and boxed ~= 'poke' and not queue.limits then
    collect_reserved(queue, boxed, pop)
    -- It is no longer in line since it was served.
    waits = false
  end
  if #pop == 0 then
    if not queue.limits then serve_waiters(queue, waiter) end
    -- A new consumer does not overtake those that could not be served yet.
    more = unserved[queue.key] or take(queue, pop)
  elseif unserved[queue.key] then
    serve_waiters(queue)
  end
  if #pop == 0 then
    due = queue.limits and quota.ms_to_next(queue, waiter) or ms_to_next(queue)
    -- A consumer that waits for a limit looks again at a time of its own.
    if queue.look and due > 0 then wait = math.min(wait, due) end
  end
  if #pop == 0 and not more and wait > 0 then
    register_for_turn(queue, waiter, waits, wait)
  elseif waits then
    forget_queue_waiters(queue, waiter)
  end
  if #pop > 0 and queue.limits then
    quota.wake(queue)
  elseif #pop > 0 and pop.ack_ms then
    poke_waiter(queue, queue.now + pop.ack_ms)
  end
  -- Usually it is one bundle, or none; the reply ends before the first nil.
  local answer = { more and 1 or 0, due, queue.damaged, pop[1], pop[2], pop[3] }
  for i = 4, #pop do answer[i + 3] = pop[i] end
  return answer
end

redis.register_function{
  function_name = 'hw_queue_pop',
  callback = function(keys, args)
    local count, ack_ms, waiter, wait = tonumber(args[1]), tonumber(args[2]), args[3], tonumber(args[4])
    local known, boxed = args[5] == '1', args[6]
    return on_queue(keys[1], pop_messages, count, ack_ms, waiter, wait, known, boxed)
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_queue_leave: remove a blocked consumer before its time.
  Messages that were reserved for it go to the next at once.
  KEYS   1 the queue
  ARGV   1 waiter
  Reply  1 when it was in line, or messages were reserved for it
]]
local function leave(queue, waiter)
  local names, found = empty_box(queue, waiter), 0
  for name in string.gmatch(names, '%S+') do
    local bundle = parse_name('retry', name)
    local key = bundle and set_key(queue, 'retry', bundle.priority)
    local time = bundle and redis.call('ZSCORE', key, name)
    if time and tonumber(time) > queue.now then
      put_member(key, queue.now, name, time)
      found = 1
    end
  end
  if redis.call('ZREM', queue.key .. ':waiters', waiter) + redis.call('ZREM', queue.key .. ':looks', waiter) > 0 then
    found = 1
  end
  if names ~= '' or queue.limits then
    commit(queue, found)
    serve_waiters(queue)
  end
  return found
end

redis.register_function{
  function_name = 'hw_queue_leave',
  callback = function(keys, args)
    local waiter = args[1]
    return on_queue(keys[1], leave, waiter)
  end,
  flags = { 'allow-oom' },
}

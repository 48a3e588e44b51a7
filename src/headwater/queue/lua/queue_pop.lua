--[[
  hw_queue_pop: hand messages to one consumer, or note that it waits for some.
  With an ack time nobody else gets them until it is over; without, they are gone from the queue.
  Who waits longest is served first: whoever comes later does not overtake.

  KEYS   1 the queue
  ARGV   1 count   2 ack ms or ''
         3 waiter, '' when the caller never blocks   4 ms it will block now, 0 when it stops
         5 '1' when this waiter has been registered by an earlier call
         6 what it found in its box, or ''
  Reply  { 1 when there may be more that this call had not the time for,
           ms until something comes due, or -1; also -1 when something was found,
           messages damaged so far, then for each bundle: its name or '' without ack, attempt, texts }
         A receipt is the name, a point and the number of a message.
]]
local function register_for_turn(queue, waiter, known, count, ack, wait)
  if not known or not redis.call('ZSCORE', queue.key .. ':waiters', waiter) then
    redis.call('ZADD', queue.key .. ':waiters', redis.call('HINCRBY', queue.key, 'turn', 1), waiter)
  end
  redis.call('HSET', queue.key, 'w:' .. waiter, digits(queue.now + wait) .. ':' .. count .. ':' .. ack)
  queue.waited = math.max(queue.waited, queue.now + wait + WAITER_GRACE_MS)
end

-- Fetches what was reserved for a waiter, as far as nobody else has it by now.
local function collect_reserved(queue, names, pop)
  for name in string.gmatch(names, '%S+') do
    local bundle = parse_name('retry', name)
    local time = bundle and redis.call('ZSCORE', set_key(queue, 'retry', bundle.priority), name)
    if time then take_bundle(queue, pop, bundle, time) end
  end
end

local function take_from_box(queue, waiter)
  while true do
    local text = redis.call('LPOP', waiter_box(queue, waiter))
    if text ~= 'poke' then return text or '' end
  end
end

redis.register_function{
  function_name = 'hw_queue_pop',
  callback = function(keys, args)
    local queue, count, ack, waiter = load_queue(keys[1]), args[1], args[2], args[3]
    local wait, known, boxed = tonumber(args[4]), args[5] == '1', args[6]
    local pop, more, due = new_pop(tonumber(count), tonumber(ack)), false, -1
    queue.asked = pop.room
    if boxed == '' and known then boxed = take_from_box(queue, waiter) end
    if boxed ~= '' and boxed ~= 'poke' then collect_reserved(queue, boxed, pop) end
    if #pop == 0 then
      serve_waiters(queue, waiter)
      more = take(queue, pop)
    end
    if #pop == 0 and not more and wait > 0 then
      register_for_turn(queue, waiter, known, count, ack, wait)
    elseif known then
      forget_queue_waiter(queue, waiter)
    end
    if #pop == 0 then
      due = ms_to_next(queue)
    elseif pop.ack_ms then
      poke_waiter(queue, queue.now + pop.ack_ms)
    end
    save_queue(queue)
    local answer = { more and 1 or 0, due, queue.damaged }
    for i = 1, #pop do answer[i + 3] = pop[i] end
    return answer
  end,
  flags = { 'allow-oom' },
}

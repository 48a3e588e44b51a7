--[[
  hw_queue_fail: report failed attempts; each message is redelivered after a delay of its own, or given up.
  A receipt counts until its deadline, and only once; anything else changes nothing.

  KEYS   1 the queue
  ARGV   1.. for each message: name of its bundle, its number, ms until it is redelivered (the queue's own
         rest and attempts count as for a nack) or -1 to give it up, error ("type\ntext")
  Reply  { how many messages that concerned, how many reports were looked at }
         When these are not all, the call has had enough to do: name the others again.
]]
local function fail_all(queue, words)
  local total, left, at, soonest, notes = 0, SETTLE_STEPS, 1, math.huge, {}
  while at < #words and left > 0 do
    local name, number, ms = words[at], words[at + 1], tonumber(words[at + 2])
    local bundle, action = parse_name('unacked', name), ms < 0 and 'bury' or 'nack'
    local meant = bundle and bundle.count == 1 and '*' or number
    local count, steps = settle(queue, action, math.max(ms, 0), name, meant)
    if count > 0 then
      local dead = action == 'bury' or not rest_ms(queue, bundle.attempt)
      notes[#notes + 1] = { number = number, bundle = bundle, error = words[at + 3], dead = dead }
      if not dead then soonest = math.min(soonest, ms) end
    end
    total, left, at = total + count, left - steps, at + 4
  end
  local reply = { total, (at - 1) / 4 }
  commit(queue, reply)
  failures.note_all(queue, notes)
  if soonest < math.huge and queue.waited >= queue.now then
    serve_waiters(queue)
    poke_waiter(queue, queue.now + soonest)
  end
  return reply
end

redis.register_function{
  function_name = 'hw_queue_fail',
  callback = function(keys, words) return on_queue(keys[1], fail_all, words) end,
  flags = { 'allow-oom' },
}

--[[
  hw_queue_causes: why messages failed that are dead letters.
  KEYS   1 the queue
  ARGV   1.. numbers of messages, 1000 at most
  Reply  for each "first delivered (ms) or nothing:type\ntext", '' when nothing is known
]]
redis.register_function{
  function_name = 'hw_queue_causes',
  callback = function(keys, numbers)
    local queue = { key = keys[1] }
    local causes = redis.call('HMGET', queue.key .. ':causes', unpack(numbers))
    for i, number in ipairs(numbers) do
      local entry = not causes[i] and failures.entry(queue, number)
      causes[i] = causes[i] or entry and failures.without_number(entry) or ''
    end
    return causes
  end,
  flags = { 'no-writes' },
}

--[[
  hw_queue_keep: process what is due in a queue that nobody pops, in steps.
  Messages whose deadline passed are redelivered or given up. Messages at the head of a list that have
  outlived their ttl are dropped. Blocked consumers are served, and silent producers forgotten.
  KEYS   1 the queue
  ARGV   1 ms of silence after which a producer's replies are forgotten
  Reply  { messages that are redelivered, given up, outlived, producers forgotten, 1 when there is more }
]]
local KEEP_STEPS = 128

-- Drops messages that have outlived their ttl from the head of a list; returns how many, and whether there
-- may be more.
local function drop_outlived(queue, priority, most)
  local key, gone = set_key(queue, 'ready', priority), 0
  while gone < most do
    local texts = redis.call('LRANGE', key, 0, queue.largest > 65536 and 0 or 63)
    local over, before = 0, gone
    for _, text in ipairs(texts) do
      local count, life = read_bundle(text)
      if not count or life == 0 or life > queue.now then break end
      over, gone = over + 1, gone + count
    end
    if over > 0 then drop_first(key, over, texts) end
    queue.bundled = queue.bundled - (gone - before) + over
    if over == 0 or over < #texts then return gone, false end
  end
  return gone, true
end

local function keep(queue, silence_ms)
  local before, buried, outlived, more = queue.retry, 0, 0, false
  local steps = KEEP_STEPS
  for _, priority in ipairs(priorities_of(queue)) do
    if steps <= 0 then
      more = true
      break
    end
    local was = queue.unacked
    local gone, busy = lapse(queue, priority, steps)
    buried, more, steps = buried + gone, more or busy, steps - (was - queue.unacked)
    gone, busy = drop_outlived(queue, priority, math.max(steps, 1))
    outlived, more, steps = outlived + gone, more or busy, steps - gone
    drop_empty_priority(queue, priority)
  end
  queue.expired = queue.expired + outlived
  local reply = { queue.retry - before, buried, outlived, 0, more and 1 or 0 }
  commit(queue, reply)
  forget_silent(queue, SILENT_STEPS)
  serve_waiters(queue)
  reply[4] = forget_producers(queue.key, queue.now - silence_ms)
  return reply
end

redis.register_function{
  function_name = 'hw_queue_keep',
  callback = function(keys, args)
    local silence_ms = tonumber(args[1])
    return on_queue(keys[1], keep, silence_ms)
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_queue_keep: do what is due to a queue when nobody pops, in steps.
  Deadlines that passed are noted: messages are redelivered or given up. What has outlived its time
  at the head of a list goes. Blocked consumers are served, silent producers forgotten.
  KEYS   1 the queue
  ARGV   1 ms of silence after which a producer's answers go
  Reply  { messages that are redelivered, given up, outlived, producers forgotten, 1 when there is more }
]]
local KEEP_STEPS = 256

-- Drops what has outlived its time from the head of a list; returns how many messages that were, and
-- whether there may be more.
local function drop_outlived(queue, priority)
  local key, gone = set_key(queue, 'ready', priority), 0
  while gone < WADE_STEPS do
    local texts = redis.call('LRANGE', key, 0, queue.largest > 65536 and 0 or 63)
    local over, before = 0, gone
    for _, text in ipairs(texts) do
      local count, life = read_bundle(text)
      if not count or life == 0 or life > queue.now then break end
      over, gone = over + 1, gone + count
    end
    if over > 0 then redis.call('LTRIM', key, over, -1) end
    queue.bundled = queue.bundled - (gone - before) + over
    if over == 0 or over < #texts then return gone, false end
  end
  return gone, true
end

redis.register_function{
  function_name = 'hw_queue_keep',
  callback = function(keys, args)
    local queue, silence_ms = load_queue(keys[1]), tonumber(args[1])
    local before, buried, outlived, more = queue.retry, 0, 0, false
    for _, priority in ipairs(priorities_of(queue)) do
      local gone, busy = lapse(queue, priority, KEEP_STEPS)
      buried, more = buried + gone, more or busy
      gone, busy = drop_outlived(queue, priority)
      outlived, more = outlived + gone, more or busy
      drop_empty_priority(queue, priority)
    end
    queue.expired = queue.expired + outlived
    local returned = queue.retry - before
    serve_waiters(queue)
    local forgotten = forget_producers(keys[1], queue.now - silence_ms)
    save_queue(queue)
    return { returned, buried, outlived, forgotten, more and 1 or 0 }
  end,
  flags = { 'allow-oom' },
}

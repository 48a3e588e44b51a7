--[[
  hw_queue_keep: do what is due to a queue when nobody pops, in steps.
  Deadlines that passed are noted: messages come again or are given up. What has outlived its time
  at the head of a list goes. Blocked consumers are served, silent producers forgotten.
  KEYS   1 the queue
  ARGV   1 ms of silence after which a producer's answers go
  Reply  { messages that come again, given up, outlived, producers forgotten, 1 when there is more }
]]
local KEEP_STEPS = 256

-- How many messages an element of a list holds, all of which have outlived their time; else 0.
local function outlived_in(queue, element)
  local count, _, life = 1, nil, nil
  if is_run(element) then
    count, _, life = read_run(element, 1)
  elseif string.byte(element, 17) == 116 and is_entry(element) then
    life = tonumber(string.sub(element, 18, 30))
  end
  return life and life > 0 and life <= queue.now and count or 0
end

-- Drops what has outlived its time from the head of a list.
local function drop_outlived(queue, level)
  local key, gone = set_key(queue, 'ready', level), 0
  while gone < WADE_STEPS do
    local elements = redis.call('LRANGE', key, 0, queue.largest > 65536 and 0 or 63)
    local over, before = 0, gone
    for _, element in ipairs(elements) do
      local count = outlived_in(queue, element)
      if count == 0 then break end
      over, gone = over + 1, gone + count
    end
    if over > 0 then redis.call('LTRIM', key, over, -1) end
    queue.bundled = queue.bundled - (gone - before) + over
    if over == 0 or over < #elements then return gone, false end
  end
  return gone, true
end

redis.register_function{
  function_name = 'hw_queue_keep',
  callback = function(keys, args)
    local queue = load_queue(keys[1])
    local before, buried, outlived, more = queue.again, 0, 0, false
    for _, level in ipairs(levels_of(queue)) do
      local gone, busy = lapse(queue, level, KEEP_STEPS)
      buried, more = buried + gone, more or busy
      gone, busy = drop_outlived(queue, level)
      outlived, more = outlived + gone, more or busy
      drop_empty_level(queue, level)
    end
    queue.expired = queue.expired + outlived
    local returned = queue.again - before
    serve_waiters(queue)
    local forgotten = forget_producers(keys[1], queue.now - tonumber(args[1]))
    save_queue(queue)
    return { returned, buried, outlived, forgotten, more and 1 or 0 }
  end,
  flags = { 'allow-oom' },
}

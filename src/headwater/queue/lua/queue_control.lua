--[[
  hw_queue_configure: say how often messages are tried, and how long they rest after each time.
  KEYS   1 the queue
  ARGV   1 attempts at most, 0 for no limit, '' to leave it
         2 manner of rest: 'none', 'fixed', 'exponential', '' to leave it
         3 ms of the (first) rest, '' to leave it   4 ms of the longest rest, '' to leave it
  Reply  the settings, "attempts:manner:ms:longest ms"
]]
redis.register_function('hw_queue_configure', function(keys, args)
  local K, attempts, manner, rest, longest = keys[1], args[1], args[2], args[3], args[4]
  local before = { string.match(load_queue(K).settings, '^(%d+):(%a+):(%d+):(%d+)$') }
  if #before == 0 then before = { '0', 'none', '1000', '3600000' } end
  local settings = { attempts, manner, rest, longest }
  for i = 1, 4 do
    if settings[i] == '' then settings[i] = before[i] end
  end
  local text = table.concat(settings, ':')
  redis.call('HSET', K, 'settings', text)
  return text
end)

--[[
  hw_queue_pause: hand out nothing until further notice, or go on.
  KEYS   1 the queue
  ARGV   1 '1' to pause, '0' to go on
  Reply  1 when that changed anything
]]
redis.register_function{
  function_name = 'hw_queue_pause',
  callback = function(keys, args)
    local queue, paused = load_queue(keys[1]), args[1]
    local changed = queue.paused ~= (paused == '1')
    redis.call('HSET', keys[1], 'paused', paused)
    queue.paused = paused == '1'
    serve_waiters(queue)
    local due = ms_to_next(queue)
    if due >= 0 then poke_waiter(queue, queue.now + due) end
    save_queue(queue)
    return changed and 1 or 0
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_queue_purge: forget all messages, wherever they are; or the queue itself.
  Settings, producers' answers and blocked consumers stay, unless the queue itself goes.
  KEYS   1 the queue
  ARGV   1 'messages' or 'all'
  Reply  { messages forgotten, 1 when the queue existed }
]]
redis.register_function{
  function_name = 'hw_queue_purge',
  callback = function(keys, args)
    local K, queue, what = keys[1], load_queue(keys[1]), args[1]
    local total = queue.unacked + queue.delayed + queue.retry + queue.dead + count_listed(queue)
    for _, priority in ipairs(priorities_of(queue)) do
      for _, set in ipairs({ 'ready', 'delayed', 'unacked', 'retry' }) do
        redis.call('UNLINK', set_key(queue, set, priority))
      end
    end
    total = total + redis.call('LLEN', K .. ':damaged')
    redis.call('UNLINK', K .. ':dead', K .. ':bundles', K .. ':damaged')
    for _, count in ipairs({ 'unacked', 'delayed', 'retry', 'dead', 'largest', 'bundled' }) do queue[count] = 0 end
    queue.priorities, queue.generation = '', queue.us
    if what == 'all' then
      redis.call('UNLINK', K, K .. ':waiters', K .. ':producers', K .. ':answers')
    else
      save_queue(queue)
    end
    return { total, queue.new and 0 or 1 }
  end,
  flags = { 'allow-oom' },
}

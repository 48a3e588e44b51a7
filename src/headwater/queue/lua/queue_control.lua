--[[
  hw_queue_configure: say how often messages are tried, and how long they rest after each time.
  KEYS   1 the queue
  ARGV   1 attempts at most, 0 for no limit, '' to leave it
         2 manner of rest: 'none', 'fixed', 'exponential', '' to leave it
         3 ms of the (first) rest, '' to leave it   4 ms of the longest rest, '' to leave it
  Reply  the settings, "attempts:manner:ms:longest ms"
]]
redis.register_function('hw_queue_configure', function(keys, args)
  local queue = load_queue(keys[1])
  local settings = { string.match(queue.settings, '^(%d+):(%a+):(%d+):(%d+)$') }
  if #settings == 0 then settings = { '0', 'none', '1000', '3600000' } end
  for i = 1, 4 do
    if args[i] ~= '' then settings[i] = args[i] end
  end
  local text = table.concat(settings, ':')
  redis.call('HSET', keys[1], 'settings', text)
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
    local queue = load_queue(keys[1])
    local changed = queue.paused ~= (args[1] == '1')
    redis.call('HSET', keys[1], 'paused', args[1])
    queue.paused = args[1] == '1'
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
    local K, queue = keys[1], load_queue(keys[1])
    local total = queue.held + queue.later + queue.again + queue.dead + count_listed(queue)
    for _, level in ipairs(levels_of(queue)) do
      for _, set in ipairs({ 'ready', 'later', 'held', 'again' }) do
        redis.call('UNLINK', set_key(queue, set, level))
      end
    end
    total = total + redis.call('LLEN', K .. ':aside')
    redis.call('UNLINK', K .. ':dead', K .. ':parcels', K .. ':aside')
    for _, count in ipairs({ 'held', 'later', 'again', 'dead', 'largest', 'bundled' }) do queue[count] = 0 end
    queue.levels, queue.generation = '', queue.us
    if args[1] == 'all' then
      redis.call('UNLINK', K, K .. ':waiters', K .. ':producers', K .. ':answers')
    else
      save_queue(queue)
    end
    return { total, queue.new and 0 or 1 }
  end,
  flags = { 'allow-oom' },
}

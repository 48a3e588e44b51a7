--[[
  hw_queue_configure: set how often messages are tried, and the delay after each failure.
  KEYS   1 the queue
  ARGV   1 attempts at most, 0 for no limit, '' to leave it
         2 kind of back-off: 'none', 'fixed', 'exponential', '' to leave it
         3 ms of the (first) delay, '' to leave it   4 ms of the longest delay, '' to leave it
  Reply  the settings, "attempts:kind:ms:longest ms"
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
  hw_queue_limit: limit how many messages of a queue are in flight and how fast they are delivered.
  KEYS   1 the queue
  ARGV   1 the limits, as the field `limits` has them (store/lua/shared/50-limits.lua); '' for none
  Reply  the limits until now, '' for none
]]
local function set_limits(queue, text)
  local before = redis.call('HGET', queue.key, 'limits') or ''
  if before == text then return before end
  redis.call('HSET', queue.key, 'limits', text)
  queue.limits = limits.of(text)
  commit(queue, before)
  serve_waiters(queue)
  return before
end

redis.register_function{
  function_name = 'hw_queue_limit',
  callback = function(keys, args)
    local text = args[1]
    return on_queue(keys[1], set_limits, text)
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_queue_pause: pause or resume the delivery of messages.
  KEYS   1 the queue
  ARGV   1 '1' to pause, '0' to resume
  Reply  1 when that changed anything
]]
local function pause(queue, paused)
  local changed = queue.paused ~= (paused == '1') and 1 or 0
  redis.call('HSET', queue.key, 'paused', paused)
  queue.paused = paused == '1'
  commit(queue, changed)
  serve_waiters(queue)
  local due = ms_to_next(queue)
  if due >= 0 then poke_waiter(queue, queue.now + due) end
  return changed
end

redis.register_function{
  function_name = 'hw_queue_pause',
  callback = function(keys, args)
    local paused = args[1]
    return on_queue(keys[1], pause, paused)
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_queue_purge: delete all messages, in every state; or the queue itself.
  Settings, producers' replies and blocked consumers stay, unless the queue itself is deleted. Dedupe keys
  of the old generation no longer count, and are freed by hw_queue_free.
  KEYS   1 the queue
  ARGV   1 'messages' or 'all'
  Reply  { messages deleted, 1 when the queue existed, generation of dedupe keys that can be freed }
]]
local function purge(queue, what)
  local K, generation = queue.key, digits(queue.generation)
  local total = queue.unacked + queue.delayed + queue.retry + queue.dead + count_listed(queue)
  total = total + redis.call('LLEN', K .. ':damaged')
  local keys = { K .. ':dead', K .. ':bundles', K .. ':damaged', K .. ':failing', K .. ':causes' }
  for _, priority in ipairs(priorities_of(queue)) do
    for _, set in ipairs({ 'ready', 'delayed', 'unacked', 'retry' }) do
      keys[#keys + 1] = set_key(queue, set, priority)
    end
  end
  if what == 'all' then
    for _, key in ipairs({ K, K .. ':waiters', K .. ':looks', K .. ':producers', K .. ':answers' }) do
      keys[#keys + 1] = key
    end
  else
    note_saved(queue)
  end
  for _, count in ipairs({ 'unacked', 'delayed', 'retry', 'dead', 'largest', 'bundled' }) do queue[count] = 0 end
  queue.priorities, queue.generation = '', queue.us
  if what == 'all' then
    queue.last = 0
    waits.forget(K)
  else
    save_queue(queue)
  end
  -- In one short step: the server frees large values in the background.
  redis.call('UNLINK', unpack(keys))
  return { total, queue.new and 0 or 1, generation }
end

redis.register_function{
  function_name = 'hw_queue_purge',
  callback = function(keys, args)
    local what = args[1]
    return on_queue(keys[1], purge, what)
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_queue_free: free dedupe keys of an old generation, some in each call.
  They also expire by themselves, at the end of their window.
  KEYS   1 the queue
  ARGV   1 the generation
  Reply  1 when there is more
]]
local FREE_STEPS = 200

redis.register_function{
  function_name = 'hw_queue_free',
  callback = function(keys, args)
    local K, generation = keys[1], args[1]
    local index, strings = K .. ':keys:' .. generation, {}
    if digits(load_queue(K).generation) == generation then return 0 end
    local found = redis.call('ZRANGE', index, 0, FREE_STEPS - 1)
    if #found == 0 then return 0 end
    for i, key in ipairs(found) do strings[i] = K .. ':dedupe:' .. generation .. ':' .. key end
    redis.call('UNLINK', unpack(strings))
    redis.call('ZREM', index, unpack(found))
    return #found == FREE_STEPS and 1 or 0
  end,
  flags = { 'allow-oom' },
}

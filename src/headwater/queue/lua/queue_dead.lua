--[[
  hw_queue_redrive: bring dead letters back.
  A message is then as if it were pushed now, under its old number, and its attempts begin anew.

  KEYS   1 the queue
  ARGV   1 messages at most
         2.. name of a bundle, numbers of its messages ("17...1,17...5", "*" for all), name, ...;
             none: the oldest bundles
  Reply  { messages, 1 when there are more to do }
]]
local DEAD_STEPS = 64

-- Takes letters out of a bundle, and back to where consumers find them if they are redriven.
local function take_letters(queue, name, numbers, most, redrive)
  local bundle, time, messages = find_bundle(queue, 'dead', name)
  if not bundle then return 0 end
  local is_meant, left = chooser(numbers, 0), most
  local letters = take_out(queue, bundle, messages, nil, time, function(...)
    if left <= 0 or not is_meant(...) then return false end
    left = left - 1
    return true
  end)
  if #letters > 0 and redrive then
    use_priority(queue, bundle.priority)
    add_bundle(queue, 'delayed', bundle.priority, 0, join_bundles(letters), #letters, queue.now)
  end
  return #letters
end

local function end_letters(K, most, args, redrive)
  local queue, left, more = load_queue(K), most, false
  for i = 2, #args, 2 do
    local name, numbers = args[i], args[i + 1]
    left = left - take_letters(queue, name, numbers, left, redrive)
  end
  if #args == 1 then
    local oldest = redis.call('ZRANGE', set_key(queue, 'dead'), 0, DEAD_STEPS - 1)
    for _, name in ipairs(oldest) do
      if left > 0 and bundle_at(queue, 'dead', '', name) then
        left = left - take_letters(queue, name, '*', left, redrive)
      end
    end
    more = left > 0 and #oldest == DEAD_STEPS
  end
  if redrive then serve_waiters(queue) end
  save_queue(queue)
  return { most - left, more and 1 or 0 }
end

redis.register_function('hw_queue_redrive', function(keys, args)
  local most = tonumber(args[1])
  return end_letters(keys[1], most, args, true)
end)

--[[
  hw_queue_discard: forget dead letters.
  KEYS   1 the queue
  ARGV   1 messages at most
         2.. name of a bundle, numbers of its messages, name, ...; none: the oldest bundles
  Reply  { messages, 1 when there are more to do }
]]
redis.register_function{
  function_name = 'hw_queue_discard',
  callback = function(keys, args)
    local most = tonumber(args[1])
    return end_letters(keys[1], most, args, false)
  end,
  flags = { 'allow-oom' },
}

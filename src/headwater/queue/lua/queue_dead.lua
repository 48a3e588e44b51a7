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

local function end_letters(queue, most, words, redrive)
  local left, more = most, false
  for i = 2, #words, 2 do
    left = left - take_letters(queue, words[i], words[i + 1], left, redrive)
  end
  if #words == 1 then
    local oldest = redis.call('ZRANGE', set_key(queue, 'dead'), 0, DEAD_STEPS - 1, 'WITHSCORES')
    for i = 1, #oldest, 2 do
      if left > 0 and bundle_at(queue, 'dead', '', oldest[i], oldest[i + 1]) then
        left = left - take_letters(queue, oldest[i], '*', left, redrive)
      end
    end
    more = left > 0 and #oldest == 2 * DEAD_STEPS
  end
  return { most - left, more and 1 or 0 }
end

local function redrive_letters(queue, most, words)
  local reply = end_letters(queue, most, words, true)
  if queue.waited >= queue.now then
    commit(queue, reply)
    serve_waiters(queue)
  end
  return reply
end

redis.register_function('hw_queue_redrive', function(keys, args)
  local most = tonumber(args[1])
  return on_queue(keys[1], redrive_letters, most, args)
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
    return on_queue(keys[1], end_letters, most, args, false)
  end,
  flags = { 'allow-oom' },
}

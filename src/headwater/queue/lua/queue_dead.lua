--[[
  hw_queue_redrive: bring dead letters back.
  A message is then as if it were pushed now, under its old number, and its attempts begin anew.

  KEYS   1 the queue
  ARGV   1 messages at most
         2.. name of a bundle, numbers of its messages ("17...1,17...5", "*" for all), name, ...;
             none: the oldest bundles
  Reply  { messages, 1 when there are more to do, how many of the bundles named were looked at }
]]
local DEAD_STEPS, DEAD_BUNDLES = 600, 64

-- Takes letters out of a bundle, and back to where consumers find them if they are redriven. Returns
-- how many, and how many steps that took; adds their numbers to `gone`.
local function take_letters(queue, name, numbers, most, redrive, gone)
  local bundle, time, messages = find_bundle(queue, 'dead', name)
  if not bundle then return 0, 1 end
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
  for _, letter in ipairs(letters) do gone[#gone + 1] = string.sub(letter, 1, 16) end
  return #letters, OPEN_STEPS + #messages
end

local function end_letters(queue, most, words, redrive)
  local left, steps, at, named, gone = most, DEAD_STEPS, 2, #words > 1, {}
  local oldest = named and {} or redis.call('ZRANGE', set_key(queue, 'dead'), 0, DEAD_BUNDLES - 1, 'WITHSCORES')
  local function take_some(name, numbers)
    local count, took = take_letters(queue, name, numbers, left, redrive, gone)
    left, steps = left - count, steps - took
  end
  while at < #words and steps > 0 do
    take_some(words[at], words[at + 1])
    at = at + 2
  end
  local place = 1
  while place < #oldest and steps > 0 and left > 0 do
    if bundle_at(queue, 'dead', '', oldest[place], oldest[place + 1]) then take_some(oldest[place], '*') end
    place = place + 2
  end
  local more = at < #words or (left > 0 and (place < #oldest or #oldest == 2 * DEAD_BUNDLES))
  local reply = { most - left, more and 1 or 0, (at - 2) / 2 }
  if gone[1] then
    commit(queue, reply)
    failures.forget(queue, gone)
  end
  return reply
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
  Reply  { messages, 1 when there are more to do, how many of the bundles named were looked at }
]]
redis.register_function{
  function_name = 'hw_queue_discard',
  callback = function(keys, args)
    local most = tonumber(args[1])
    return on_queue(keys[1], end_letters, most, args, false)
  end,
  flags = { 'allow-oom' },
}

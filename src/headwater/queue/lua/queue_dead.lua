--[[
  hw_queue_redrive: redeliver dead letters.
  A message is then as if it were pushed now, under its old number, with a new count of attempts.

  KEYS   1 the queue
  ARGV   1 messages at most
         2 when the newest of the letters was given up: newest_dead of hw_queue_stats
         3 the newest number of a bundle: last of hw_queue_stats; later letters are not touched
         4 how many bundles to skip, from the last reply, 0 to begin
         5.. name of a bundle, numbers of its messages ("17...1,17...5", "*" for all), name, ...;
             none: the oldest bundles up to 2 and 3
  Reply  { messages, 1 when there are more to do, how many of the named bundles were processed,
           how many bundles to skip next time }
]]
local DEAD_STEPS, DEAD_BUNDLES = 600, 64

-- Takes letters out of a bundle, and makes them available to consumers if they are redriven. Returns how
-- many, and how many steps that took; adds their numbers to `gone`.
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

-- Returns up to DEAD_BUNDLES of the oldest bundles, each with its time.
local function oldest_letters(queue, newest, over)
  return redis.call('ZRANGE', queue.key .. ':dead', '-inf', newest, 'BYSCORE', 'LIMIT', over, DEAD_BUNDLES, 'WITHSCORES')
end

local function end_letters(queue, most, words, redrive)
  local newest, number, over = words[2], tonumber(words[3]), tonumber(words[4])
  local left, steps, at, named, gone = most, DEAD_STEPS, 5, #words > 4, {}
  local oldest = named and {} or oldest_letters(queue, newest, over)
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
    local bundle = bundle_at(queue, 'dead', '', oldest[place], oldest[place + 1])
    if bundle and to_number(bundle.number) > number then
      -- A newer letter: delivered and given up after the end was read, in its millisecond or by a clock set back.
      over, steps = over + 1, steps - 1
    elseif bundle then
      take_some(oldest[place], '*')
    end
    place = place + 2
  end
  local more = at < #words or (left > 0 and (place < #oldest or #oldest == 2 * DEAD_BUNDLES))
  local reply = { most - left, more and 1 or 0, (at - 5) / 2, over }
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
  hw_queue_discard: delete dead letters.
  KEYS   1 the queue
  ARGV   1 messages at most
         2 when the newest of the letters was given up: newest_dead of hw_queue_stats
         3 the newest number of a bundle: last of hw_queue_stats; later letters are not touched
         4 how many bundles to skip, from the last reply, 0 to begin
         5.. name of a bundle, numbers of its messages, name, ...; none: the oldest bundles up to 2 and 3
  Reply  { messages, 1 when there are more to do, how many of the named bundles were processed,
           how many bundles to skip next time }
]]
redis.register_function{
  function_name = 'hw_queue_discard',
  callback = function(keys, args)
    local most = tonumber(args[1])
    return on_queue(keys[1], end_letters, most, args, false)
  end,
  flags = { 'allow-oom' },
}

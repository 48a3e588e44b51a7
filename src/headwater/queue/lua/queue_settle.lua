--[[
  hw_queue_settle: ack, nack, release or extend delivered messages.
  A receipt counts until its deadline, and only once; anything else changes nothing.

  KEYS   1 the queue
  ARGV   1 'ack': done, delete it
           'nack': redeliver it after 2 or after the queue's own delay, whichever is longer; or give
                   it up, when it was delivered as often as the queue allows
           'release': redeliver it at once, as if it had not been delivered
           'extend': its deadline is 2 ms from now
         2 ms
         3.. name of a bundle, numbers of its messages ("17...1,17...5", "*" for all), name, ...
  Reply  { how many messages were changed, how many bundles were processed }
         When these are not all, the call has reached its limit: name the others again.
]]
-- How much one call does: a bundle that is settled as it was delivered is one step, and one that has to be
-- opened is one step per message.
local SETTLE_STEPS = 600
-- Returns the place of returned messages: set, attempt and time. 'bury' gives up at once. The number is that
-- of the bundle or message that spreads their delay.
local function destination(queue, action, ms, attempt, number)
  if action == 'bury' then return 'dead', attempt, queue.now end
  if action == 'release' then return 'retry', math.max(attempt - 1, 0), queue.now end
  local rest = rest_ms(queue, attempt, number)
  if not rest then return 'dead', attempt, queue.now end
  return 'retry', attempt, queue.now + math.max(ms, rest)
end

local function settle_whole(queue, action, ms, bundle, time)
  if action == 'ack' then
    drop_bundle(queue, bundle, time)
  elseif action == 'extend' then
    put_name(queue, 'unacked', bundle.priority, queue.now + ms, bundle.name, time)
  else
    local set, attempt, at = destination(queue, action, ms, bundle.attempt, bundle.number)
    put_name(queue, set, bundle.priority, at,
      name_of(bundle.number, bundle.priority, attempt, bundle.count))
    drop_member(set_key(queue, 'unacked', bundle.priority), time, bundle.name)
    queue.unacked, queue[set] = queue.unacked - bundle.count, queue[set] + bundle.count
  end
  return bundle.count
end

-- Gives some messages of a bundle another deadline; the others keep theirs. Returns how many.
local function extend_some(queue, bundle, messages, deadlines, time, until_ms, is_meant)
  local ends, earliest, count = {}, math.huge, 0
  for i, message in ipairs(messages) do
    ends[i] = deadlines and deadlines[i] or time
    if is_meant(message, ends[i]) then ends[i], count = until_ms, count + 1 end
    earliest = math.min(earliest, ends[i])
  end
  if count == 0 then return 0 end
  if count == #messages then ends = nil end
  rewrite_bundle(queue, bundle, join_bundles(messages, ends), #messages, time, earliest, ends ~= nil)
  return count
end

local function settle_some(queue, action, ms, name, numbers)
  local bundle, time, messages, deadlines = find_bundle(queue, 'unacked', name)
  if not bundle then return 0, 1 end
  local steps = OPEN_STEPS + #messages
  local is_meant = chooser(numbers, queue.now)
  if action == 'extend' then
    return extend_some(queue, bundle, messages, deadlines, time, queue.now + ms, is_meant), steps
  end
  local taken = take_out(queue, bundle, messages, deadlines, time, is_meant)
  if #taken > 0 and action ~= 'ack' then
    local set, attempt, at = destination(queue, action, ms, bundle.attempt, string.sub(taken[1], 1, 16))
    add_bundle(queue, set, bundle.priority, attempt, join_bundles(taken), #taken, at)
  end
  return #taken, steps
end

-- Returns how many messages were settled, and how many steps that took.
local function settle(queue, action, ms, name, numbers)
  local bundle = numbers == '*' and parse_name('unacked', name)
  local time = bundle and redis.call('ZSCORE', set_key(queue, 'unacked', bundle.priority), name)
  if not time then return settle_some(queue, action, ms, name, numbers) end
  time = to_number(time)
  return time > queue.now and settle_whole(queue, action, ms, bundle, time) or 0, 1
end

local function settle_all(queue, action, ms, words)
  local total, left, at = 0, SETTLE_STEPS, 3
  while at < #words and left > 0 do
    local count, steps = settle(queue, action, ms, words[at], words[at + 1])
    total, left, at = total + count, left - steps, at + 2
  end
  local reply = { total, (at - 3) / 2 }
  if action == 'ack' then
    queue.acked = queue.acked + total
    if queue.limits and queue.waited >= queue.now then
      commit(queue, reply)
      serve_waiters(queue)
    end
  elseif total > 0 and action ~= 'extend' and queue.waited >= queue.now then
    commit(queue, reply)
    serve_waiters(queue)
    poke_waiter(queue, queue.now + ms)
  end
  return reply
end

redis.register_function{
  function_name = 'hw_queue_settle',
  callback = function(keys, args)
    local action, ms = args[1], tonumber(args[2])
    return on_queue(keys[1], settle_all, action, ms, args)
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_queue_aside: put aside messages that a consumer could not read because their checksum is wrong.
  KEYS   1 the queue
  ARGV   1.. name of the bundle, '' when it was taken without ack; number of the message; what was found;
         name, ...
  Reply  how many messages were put aside
]]
local function put_all_aside(queue, words)
  local total = 0
  for i = 1, #words, 3 do
    local name, number, found, count = words[i], words[i + 1], words[i + 2], 1
    if name ~= '' then count = settle(queue, 'ack', 0, name, number) end
    if count > 0 then put_aside(queue, found, count) end
    total = total + count
  end
  return total
end

redis.register_function{
  function_name = 'hw_queue_aside',
  callback = function(keys, words) return on_queue(keys[1], put_all_aside, words) end,
  flags = { 'allow-oom' },
}

--[[
  hw_queue_fail: report failed attempts; each message is redelivered after its own delay, or given up.
  A receipt counts until its deadline, and only once; anything else changes nothing.

  KEYS   1 the queue
  ARGV   1.. for each message: name of its bundle, its number, ms until it is redelivered (the queue's own
         delay and attempts count as for a nack) or -1 to give it up, error ("type\ntext")
  Reply  { how many messages were changed, how many reports were processed }
         When these are not all, the call has reached its limit: name the others again.
]]
local function fail_all(queue, words)
  local total, left, at, soonest, notes = 0, SETTLE_STEPS, 1, math.huge, {}
  while at < #words and left > 0 do
    local name, number, ms = words[at], words[at + 1], tonumber(words[at + 2])
    local bundle, action = parse_name('unacked', name), ms < 0 and 'bury' or 'nack'
    local meant = bundle and bundle.count == 1 and '*' or number
    local count, steps = settle(queue, action, math.max(ms, 0), name, meant)
    if count > 0 then
      local dead = action == 'bury' or not rest_ms(queue, bundle.attempt, number)
      notes[#notes + 1] = { number = number, bundle = bundle, error = words[at + 3], dead = dead }
      if not dead then soonest = math.min(soonest, ms) end
    end
    total, left, at = total + count, left - steps, at + 4
  end
  local reply = { total, (at - 1) / 4 }
  commit(queue, reply)
  failures.note_all(queue, notes)
  if soonest < math.huge and queue.waited >= queue.now then
    serve_waiters(queue)
    poke_waiter(queue, queue.now + soonest)
  end
  return reply
end

redis.register_function{
  function_name = 'hw_queue_fail',
  callback = function(keys, words) return on_queue(keys[1], fail_all, words) end,
  flags = { 'allow-oom' },
}

--[[
  hw_queue_causes: get the errors of messages that are dead letters.
  KEYS   1 the queue
  ARGV   1.. numbers of messages, 1000 at most
  Reply  for each "first delivered (ms) or nothing:type\ntext", '' when nothing is known
]]
redis.register_function{
  function_name = 'hw_queue_causes',
  callback = function(keys, numbers)
    local queue = { key = keys[1] }
    local causes = redis.call('HMGET', queue.key .. ':causes', unpack(numbers))
    for i, number in ipairs(numbers) do
      local entry = not causes[i] and failures.entry(queue, number)
      causes[i] = causes[i] or entry and failures.without_number(entry) or ''
    end
    return causes
  end,
  flags = { 'no-writes' },
}

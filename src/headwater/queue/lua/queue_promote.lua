--[[
  hw_queue_promote: deliver delayed messages now; attempts do not change.
  A message that is no longer delayed is not changed.

  KEYS   1 the queue
  ARGV   1.. name of a bundle, numbers of its messages ("17...1,17...5", "*" for all), name, ...
  Reply  { messages, how many of the named bundles were processed }
         When these are not all, the call has reached its limit: name the others again.
]]
local PROMOTE_STEPS = 600

-- Returns how many messages of a bundle were promoted, and how many steps that took.
local function promote_some(queue, name, numbers)
  for _, set in ipairs({ 'delayed', 'retry' }) do
    local bundle, time, messages = find_bundle(queue, set, name)
    if bundle and time <= queue.now then return 0, OPEN_STEPS end
    if bundle then
      local taken = take_out(queue, bundle, messages, nil, time, chooser(numbers, 0))
      if #taken > 0 then
        add_bundle(queue, set, bundle.priority, bundle.attempt, join_bundles(taken), #taken, queue.now)
      end
      return #taken, OPEN_STEPS + #messages
    end
  end
  return 0, 1
end

local function promote_all(queue, words)
  local total, steps, at = 0, PROMOTE_STEPS, 1
  while at < #words and steps > 0 do
    local count, took = promote_some(queue, words[at], words[at + 1])
    total, steps, at = total + count, steps - took, at + 2
  end
  local reply = { total, (at - 1) / 2 }
  if total > 0 and queue.waited >= queue.now then
    commit(queue, reply)
    serve_waiters(queue)
  end
  return reply
end

redis.register_function{
  function_name = 'hw_queue_promote',
  callback = function(keys, words) return on_queue(keys[1], promote_all, words) end,
  flags = { 'allow-oom' },
}

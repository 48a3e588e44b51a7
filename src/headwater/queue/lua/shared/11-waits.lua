--[[
  How long messages waited: from when they could be popped until somebody popped them. They are
  counted in memory, which costs a pop next to nothing, and added to what the queue knows whenever
  its rates are marked: by the first call on a queue ten seconds after the mark before, of whoever pops
  or of the housekeeper. A server that stops, in order or not, and a replica that takes over have
  forgotten what was counted since: ten seconds of use at most, which may be long ago when nobody has
  called since.

    K  hash  waits   "n:n:...:ms": messages that waited up to each of BOUNDS, and longer; the sum of all
]]
-- `noted`, by the key of a queue: what is not added yet, of `kept` queues.
-- BOUNDS are in ms; headwater.queue.types has the same.
local waits = {
  BOUNDS = { 1, 5, 25, 100, 500, 1000, 5000, 30000, 60000, 300000, 3600000, 86400000 },
  MOST_QUEUES = 10000, noted = {}, kept = 0,
}

function waits.bucket(ms)
  local at, bounds = 1, waits.BOUNDS
  while at <= #bounds and ms > bounds[at] do at = at + 1 end
  return at
end

-- Counts messages that could be popped since then, a microsecond.
function waits.note(queue, count, since)
  local own, ms = waits.noted[queue.key], math.max((queue.us - since) / 1000, 0)
  if not own then
    -- Queues that nobody uses any more are not kept for ever.
    if waits.kept >= waits.MOST_QUEUES then waits.noted, waits.kept = {}, 0 end
    own = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
    waits.noted[queue.key], waits.kept = own, waits.kept + 1
  end
  local at = waits.bucket(ms)
  own[at], own[14] = own[at] + count, own[14] + ms * count
end

-- Returns all that was counted of a queue, of which `text` was added before.
function waits.of(K, text)
  local all, own = {}, waits.noted[K]
  for number in string.gmatch(text or '', '%d+') do all[#all + 1] = tonumber(number) end
  for i = 1, 14 do all[i] = (all[i] or 0) + (own and math.floor(own[i]) or 0) end
  return all
end

function waits.forget(K)
  if waits.noted[K] then waits.noted[K], waits.kept = nil, waits.kept - 1 end
end

-- Rates are taken between marks, which are set as the queue is used.
local function set_mark(queue)
  local K, known = queue.key, redis.call('HMGET', queue.key, 'mark', 'waits')
  local mark = { digits(queue.now), digits(queue.pushed), digits(queue.popped), digits(queue.acked) }
  local all = waits.of(K, known[2])
  for i = 1, #all do all[i] = digits(all[i]) end
  redis.call('HSET', K, 'mark_before', known[1] or '', 'mark', table.concat(mark, ':'),
    'waits', table.concat(all, ':'))
  waits.forget(K)
  queue.marked = queue.now
end

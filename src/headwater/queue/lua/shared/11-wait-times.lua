--[[
  How long messages waited, from the time at which they could be popped until they were. Waits are counted in
  memory and saved with the counts of the queue by the first call after SAVE_MS, so that a busy queue pays for
  this ten times a second and not with every pop. The first pop after a quiet time is saved at once. A server
  that stops, cleanly or not, and a replica that takes over lose at most the pops of the SAVE_MS after the last
  save: none of a queue that is popped less often.

    K  hash  waits   "n:n:...:ms": messages that waited up to each of BOUNDS, and longer; the sum of all
]]
-- `noted`, by the key of a queue: what is not saved yet, and `saved`, the ms of the last save; for `kept`
-- queues. BOUNDS are in ms; headwater.queue.types has the same.
local waits = {
  BOUNDS = { 1, 5, 25, 100, 500, 1000, 5000, 30000, 60000, 300000, 3600000, 86400000 },
  SAVE_MS = 100, MOST_QUEUES = 10000, noted = {}, kept = 0,
}

function waits.bucket(ms)
  local at, bounds = 1, waits.BOUNDS
  while at <= #bounds and ms > bounds[at] do at = at + 1 end
  return at
end

-- What is left after a save: only the remaining part of a ms.
local function nothing_noted(saved, ms)
  return { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ms, count = 0, saved = saved }
end

-- Returns the unsaved waits of a queue. Beyond MOST_QUEUES they belong to this call alone, which saves them.
local function noted_of(queue)
  local own = waits.noted[queue.key] or queue.waits
  if own then return own end
  own = nothing_noted(0, 0)
  queue.waits = own
  if waits.kept < waits.MOST_QUEUES then waits.noted[queue.key], waits.kept = own, waits.kept + 1 end
  return own
end

-- Counts messages that could be popped since a time in us.
function waits.note(queue, count, since)
  local own, ms = noted_of(queue), math.max((queue.us - since) / 1000, 0)
  local at = waits.bucket(ms)
  own[at], own[14], own.count = own[at] + count, own[14] + ms * count, own.count + count
end

-- Returns all waits of a queue, of which `text` was saved before.
function waits.of(text, own)
  local all = {}
  for number in string.gmatch(text or '', '%d+') do all[#all + 1] = tonumber(number) end
  for i = 1, 14 do all[i] = (all[i] or 0) + (own and math.floor(own[i]) or 0) end
  return all
end

-- Returns the text to save when there is something to save and it is time, else nil.
function waits.due(queue)
  local own = waits.noted[queue.key] or queue.waits
  -- A clock that was stepped back must not delay the save.
  if not own or own.count == 0 or math.abs(queue.now - own.saved) < waits.SAVE_MS then return nil end
  local all = waits.of(redis.call('HGET', queue.key, 'waits'), own)
  for i = 1, #all do all[i] = digits(all[i]) end
  return table.concat(all, ':')
end

function waits.saved(queue)
  local own = waits.noted[queue.key]
  if own then waits.noted[queue.key] = nothing_noted(queue.now, own[14] % 1) end
  queue.waits = nil
end

function waits.forget(K)
  if waits.noted[K] then waits.noted[K], waits.kept = nil, waits.kept - 1 end
end

-- Rates are computed between marks, which are set as the queue is used.
local function set_mark(queue)
  local mark = { digits(queue.now), digits(queue.pushed), digits(queue.popped), digits(queue.acked) }
  redis.call('HSET', queue.key, 'mark_before', redis.call('HGET', queue.key, 'mark') or '',
    'mark', table.concat(mark, ':'))
  queue.marked = queue.now
end

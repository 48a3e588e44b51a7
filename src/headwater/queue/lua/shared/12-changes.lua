--[[
  Changes of messages, each with its undo; and how a call on a queue begins and ends.
]]
-- Puts a member into a sorted set; `before` is its time if it was there.
local function put_member(key, time, member, before)
  redis.call('ZADD', key, time, member)
  if before then note_undo('zadd', key, before, member) else note_undo('zrem', key, member) end
end

local function drop_member(key, time, member)
  redis.call('ZREM', key, member)
  note_undo('zadd', key, time, member)
end

-- Writes the text of a bundle; `before` is its text if it has one.
local function put_text(queue, number, text, before)
  local key = queue.key .. ':bundles'
  redis.call('HSET', key, number, text)
  if before then note_undo('hset', key, number, before) else note_undo('hdel', key, number) end
end

-- Puts texts at the end of a list, a limited number in one step, so that the call is short.
local function append_texts(key, texts)
  for i = 1, #texts, 1000 do
    local last = math.min(i + 999, #texts)
    redis.call('RPUSH', key, unpack(texts, i, last))
    note_undo('cut_end', key, last - i + 1)
  end
end

-- Takes the first texts off a list; `steps` has them when they were read in several steps.
local function drop_first(key, count, texts, steps)
  redis.call('LTRIM', key, count, -1)
  if steps then note_undo('put_steps', key, steps) else note_undo('put_first', key, texts, count) end
end

local function replace_first(key, text, before)
  redis.call('LSET', key, 0, text)
  note_undo('lset', key, before)
end

-- ── A call ────────────────────────────────────────────────────────────────────────────────────

-- Saves the counts and priorities of a queue, in one step.
local function save_queue(queue)
  if queue.last > 0 then
    if queue.now >= queue.marked + MARK_MS then set_mark(queue) end
    local counts, waited = pack_counts(queue), waits.due(queue)
    if waited then
      redis.call('HSET', queue.key, 'counts', counts, 'priorities', queue.priorities, 'waits', waited)
      waits.saved(queue)
    elseif queue.priorities ~= queue.priorities_before then
      redis.call('HSET', queue.key, 'counts', counts, 'priorities', queue.priorities)
    elseif counts ~= queue.before then
      redis.call('HSET', queue.key, 'counts', counts)
    end
    queue.before, queue.priorities_before = counts, queue.priorities
  end
end

-- Records the current counts, for a call that does something more after it has saved them.
local function note_saved(queue)
  if queue.new then
    note_undo('hdel', queue.key, 'counts')
    note_undo('hdel', queue.key, 'priorities')
  else
    note_undo('hset', queue.key, 'counts', queue.before)
    note_undo('hset', queue.key, 'priorities', queue.priorities_before)
  end
end

-- Deletes the texts of bundles that are gone. A text that cannot be deleted is emptied, so that it does not
-- look like lost messages, and is deleted by a later call.
local function delete_unused(K, numbers)
  if unused[K] then
    for _, number in ipairs(unused[K]) do numbers[#numbers + 1] = number end
    unused[K] = nil
  end
  for i = 1, #numbers, 1000 do
    local reply = redis.pcall('HDEL', K .. ':bundles', unpack(numbers, i, math.min(i + 999, #numbers)))
    if type(reply) == 'table' then
      unused[K] = numbers
      empty_texts(K, numbers, i, math.min(i + 999, #numbers))
    end
  end
end

-- Ends an all-or-nothing part of a call.
local function finish(queue)
  save_queue(queue)
  noted = 0
  if queue.unused or unused[queue.key] then
    delete_unused(queue.key, queue.unused or {})
    queue.unused = nil
  end
end

-- Ends an all-or-nothing part of a call, and begins a separate one: if that fails, its changes are undone,
-- and the call still replies with `reply`.
local function commit(queue, reply)
  finish(queue)
  queue.reply = reply
end

-- Keeps what could not be undone.
local function remember_rest(K, rest, left)
  rest.count, unfinished[K] = left, rest
  -- An error reply has no first value: then the counts are unknown.
  rest.counts = redis.pcall('HMGET', K, 'counts')[1]
end

-- Undoes what an earlier call could not, unless the queue has changed since.
local function take_rest_back(K, rest)
  local counts = redis.call('HMGET', K, 'counts')[1]
  unfinished[K] = nil
  if rest.counts ~= nil and rest.counts ~= counts then return end
  local left, fault = take_back(rest, rest.count)
  if left > 0 then
    remember_rest(K, rest, left)
    error(fault)
  end
end

-- Runs a function on a queue: all of it happens, or nothing. `work` takes the queue and the further
-- arguments, and returns the reply.
local function on_queue(K, work, ...)
  local rest = unfinished[K]
  if rest then take_rest_back(K, rest) end
  local queue = load_queue(K)
  noted = 0
  local fine, reply, fault = pcall(work, queue, ...)
  if fine then fine, fault = pcall(finish, queue) else fault = reply end
  if fine then return reply end
  local left = take_back(undos, noted)
  if left > 0 then
    remember_rest(K, undos, left)
    undos = {}
  end
  if queue.reply then return queue.reply end
  return type(fault) == 'table' and fault or redis.error_reply('ERR ' .. tostring(fault))
end

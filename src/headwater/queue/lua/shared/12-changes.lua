--[[
  Changes that can be taken back. A function does not roll back by itself when one of its calls fails
  half-way: a right was taken away, or a key has the wrong type. So whatever changes messages notes
  here how that is undone, and a call either does all of its work or none of it:

    read and change, noting each undo ──▶ save the counts ──▶ done; what is unused now is deleted
                  │ a call fails                │ fails
                  └────────────▶ take back, the newest change first ◀──┘

  Should taking back fail as well, the rest of it is remembered, and is done by the next call on this
  queue that is allowed to. Waiters and their boxes are not noted: a name in a box counts only as long
  as its bundle is there, and a waiter ends by itself.
]]
-- What takes back the changes of this call: for each a kind, a key, and what to write there. The table
-- is used again by the next call, because tables that grow cost: `noted` is how much of it counts.
local undos, noted = {}, 0
-- Of a queue, by its key: what could not be taken back, and how much; texts of bundles that could not
-- be deleted; whether consumers wait although there is something for them.
local unfinished, unused, unserved = {}, {}, {}

local function put_first(key, texts, count)
  local back = {}
  for i = count, 1, -1 do back[#back + 1] = texts[i] end
  for i = 1, #back, 1000 do redis.call('LPUSH', key, unpack(back, i, math.min(i + 999, #back))) end
end

local UNDO = {
  zadd = function(key, time, name) redis.call('ZADD', key, time, name) end,
  zadds = function(key, flat) redis.call('ZADD', key, unpack(flat)) end,
  zrem = function(key, name) redis.call('ZREM', key, name) end,
  zrems = function(key, names) redis.call('ZREM', key, unpack(names)) end,
  hset = function(key, field, text) redis.call('HSET', key, field, text) end,
  hdel = function(key, field) redis.call('HDEL', key, field) end,
  lset = function(key, text) redis.call('LSET', key, 0, text) end,
  unlink = function(key) redis.call('UNLINK', key) end,
  -- So many were put at the end of a list.
  cut_end = function(key, count) redis.call('LTRIM', key, 0, 0 - count - 1) end,
  -- The first so many texts were taken off a list.
  put_first = put_first,
  -- The same, when these were read in several steps: texts, how many of them, texts, how many, ...
  put_steps = function(key, steps)
    for i = #steps, 2, -2 do put_first(key, steps[i - 1], steps[i]) end
  end,
}

local function note_undo(kind, key, a, b)
  local n = noted
  undos[n + 1], undos[n + 2], undos[n + 3], undos[n + 4] = kind, key, a, b
  noted = n + 4
end

-- Takes changes back, the newest first. Returns how much of the list is left when one cannot be.
local function take_back(list, count)
  for n = count, 4, -4 do
    if not pcall(UNDO[list[n - 3]], list[n - 2], list[n - 1], list[n]) then return n end
  end
  return 0
end

-- ── Changes ───────────────────────────────────────────────────────────────────────────────────

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

-- Puts texts at the end of a list; of those that lie there for a while, so few that the call is short.
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

-- Saves the counts and priorities of a queue, in one step; what was noted is taken back no more.
local function save_queue(queue)
  if queue.last > 0 then
    if queue.now >= queue.marked + MARK_MS then set_mark(queue) end
    local counts = pack_counts(queue)
    if queue.priorities ~= queue.priorities_before then
      redis.call('HSET', queue.key, 'counts', counts, 'priorities', queue.priorities)
    elseif counts ~= queue.before then
      redis.call('HSET', queue.key, 'counts', counts)
    end
    queue.before, queue.priorities_before = counts, queue.priorities
  end
end

-- Notes how the counts are, for a call that does something more after it has saved them.
local function note_saved(queue)
  if queue.new then
    note_undo('hdel', queue.key, 'counts')
    note_undo('hdel', queue.key, 'priorities')
  else
    note_undo('hset', queue.key, 'counts', queue.before)
    note_undo('hset', queue.key, 'priorities', queue.priorities_before)
  end
end

-- Deletes the texts of bundles that are gone. One that stays is found by nobody, and goes with a later call.
local function delete_unused(K, numbers)
  if unused[K] then
    for _, number in ipairs(unused[K]) do numbers[#numbers + 1] = number end
    unused[K] = nil
  end
  for i = 1, #numbers, 1000 do
    local reply = redis.pcall('HDEL', K .. ':bundles', unpack(numbers, i, math.min(i + 999, #numbers)))
    if type(reply) == 'table' then unused[K] = numbers end
  end
end

-- Ends what must be done as a whole.
local function finish(queue)
  save_queue(queue)
  noted = 0
  if queue.unused or unused[queue.key] then
    delete_unused(queue.key, queue.unused or {})
    queue.unused = nil
  end
end

-- Ends what must be done as a whole, and begins something apart: should that fail, its changes are
-- taken back, and the call still replies with `reply`.
local function commit(queue, reply)
  finish(queue)
  queue.reply = reply
end

local function work_and_finish(queue, work, ...)
  local reply = work(queue, ...)
  finish(queue)
  return reply
end

-- Runs a function on a queue: all of it happens, or nothing. `work` takes the queue and what follows
-- here, and returns the reply.
local function on_queue(K, work, ...)
  local rest = unfinished[K]
  if rest then
    rest.count = take_back(rest, rest.count)
    if rest.count > 0 then return redis.error_reply('ERR an earlier call on this queue is not taken back yet') end
    unfinished[K] = nil
  end
  local queue = load_queue(K)
  noted = 0
  local fine, reply = pcall(work_and_finish, queue, work, ...)
  if fine then return reply end
  local left = take_back(undos, noted)
  if left > 0 then
    unfinished[K], undos = undos, {}
    unfinished[K].count = left
  end
  if queue.reply then return queue.reply end
  return type(reply) == 'table' and reply or redis.error_reply('ERR ' .. tostring(reply))
end

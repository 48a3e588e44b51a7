--[[
  hw_queue_push: put messages into a queue, all or none.
  Numbers are assigned here, consecutively. A repeat of (producer, sequence) changes nothing and gets the
  first reply; so does a message whose dedupe key was pushed within its window.

  KEYS   1 the queue
  ARGV   1 delay ms   2 priority   3 ms to live or ''   4 producer or ''
         5 its sequence and, after a colon, a digest of the content if it has one
         6 ms for which dedupe keys are remembered, or '' when there are none
         7 '1' when each value ends with its checksum: the CRC-32 of what is before it, 4 bytes,
           little-endian; 'h' when some of them also have headers (see shared/15-bundles.lua); else ''
         then values; or, with dedupe keys: key, value, key, value, ...
  Reply  { 1 when the queue is new, first number, last number }
         with dedupe keys { 1 when the queue is new, number of each message }
         error HW_STALE <newest sequence> when the sequence is older than what is remembered
         error HW_REUSED <first> <last> when the sequence was pushed with other content
]]
local PUSH_ARGS = 7
local KEY_STEPS = 1000

-- Cuts values into parts of a limited size, as if the first part had some values before it; returns the last
-- place of each.
local function cut(values, most, bytes, before)
  local lasts, count, room = {}, before, bytes
  for i = 1, #values do
    local size = #values[i]
    if i > 1 and (count == most or size > room) then
      lasts[#lasts + 1] = i - 1
      count, room = 0, bytes
    end
    count, room = count + 1, room - size
  end
  lasts[#lasts + 1] = #values
  return lasts
end

-- Makes bundles for a list out of values; of one message each where there are only a few. They end where a
-- pop is likely to end, given the number of messages before them.
local function bundles_for(queue, first, life, checked, values, before)
  local texts, from, mark, length = {}, 1, mark_of(life, checked), ready_length(queue)
  for _, to in ipairs(cut(values, length, READY_BYTES, before % length)) do
    if to - from + 1 >= READY_LEAST then
      texts[#texts + 1] = pack_bundle(first + from - 1, life, checked, values, from, to)
    else
      for i = from, to do texts[#texts + 1] = digits(first + i - 1) .. mark .. values[i] end
    end
    from = to + 1
  end
  return texts
end

local function store_ready(queue, priority, first, life, checked, values)
  local key = set_key(queue, 'ready', priority)
  local before = 0
  if #values >= READY_LEAST then
    before = count_listed(queue)
    if before == 0 then queue.bundled = 0 end
  end
  local texts = bundles_for(queue, first, life, checked, values, before)
  for i = 1, #texts do queue.largest = math.max(queue.largest, #texts[i]) end
  queue.bundled = queue.bundled + #values - #texts
  append_texts(key, texts)
end

local function store_delayed(queue, priority, delay, first, life, checked, values)
  local from, due = 1, queue.now + delay
  for _, to in ipairs(cut(values, BUNDLE_MESSAGES, BUNDLE_BYTES, 0)) do
    local text = pack_bundle(first + from - 1, life, checked, values, from, to)
    add_bundle(queue, 'delayed', priority, 0, text, to - from + 1, due)
    from = to + 1
  end
end

local function store(queue, priority, delay, ttl, first, checked, values)
  if #values == 0 then return end
  local life = ttl == '' and 0 or queue.now + tonumber(ttl)
  if queue.priorities == '' then queue.largest = 0 end
  use_priority(queue, priority)
  queue.pushed = queue.pushed + #values
  if delay > 0 then return store_delayed(queue, priority, delay, first, life, checked, values) end
  store_ready(queue, priority, first, life, checked, values)
end

-- Forgets some dedupe keys whose window is over, twice as many as are new, and records the new ones: time,
-- key, time, key, ... When a queue is deleted, its dedupe keys are found by these. They also expire by
-- themselves.
local function index_keys(queue, window_ms, rows)
  local index = queue.key .. ':keys:' .. digits(queue.generation)
  local over = redis.call('ZRANGE', index, '-inf', queue.now, 'BYSCORE', 'LIMIT', 0, math.min(#rows, KEY_STEPS))
  if #over > 0 then redis.call('ZREM', index, unpack(over)) end
  for i = 1, #rows, KEY_STEPS do
    redis.call('ZADD', index, unpack(rows, i, math.min(i + KEY_STEPS - 1, #rows)))
  end
  if redis.call('PEXPIRE', index, window_ms, 'GT') == 0 then redis.call('PEXPIRE', index, window_ms, 'NX') end
end

-- Leaves out messages that were pushed before under the same key; returns the new values and the number of
-- each message. No other numbers are assigned meanwhile: those of new messages are consecutive.
local function push_once(queue, window_ms, args)
  local values, numbers, fresh, rows = {}, {}, {}, {}
  local prefix, over = queue.key .. ':dedupe:' .. digits(queue.generation) .. ':', queue.now + tonumber(window_ms)
  local keys, before = {}, {}
  for i = PUSH_ARGS + 1, #args, 2 do keys[#keys + 1] = prefix .. args[i] end
  for i = 1, #keys, KEY_STEPS do
    local some = redis.call('MGET', unpack(keys, i, math.min(i + KEY_STEPS - 1, #keys)))
    for j = 1, math.min(KEY_STEPS, #keys - i + 1) do before[i + j - 1] = some[j] end
  end
  for i = PUSH_ARGS + 1, #args, 2 do
    local place = (i - PUSH_ARGS + 1) / 2
    local key = keys[place]
    local known = fresh[key] or before[place]
    if not known then
      known = digits(next_numbers(queue, 1))
      values[#values + 1], fresh[key] = args[i + 1], known
      rows[#rows + 1], rows[#rows + 2] = over, args[i]
    end
    numbers[#numbers + 1] = known
  end
  if #rows > 0 then index_keys(queue, window_ms, rows) end
  for key, number in pairs(fresh) do
    redis.call('SET', key, number, 'PX', window_ms)
    note_undo('unlink', key)
  end
  return values, numbers
end

-- Stores messages that are not duplicates; returns the reply.
local function push_new(queue, args, delay, priority, ttl, producer, sequence, digest, window_ms, checks)
  -- Dedupe keys of a deleted queue of the same name do not count.
  if queue.new then queue.generation = queue.us end
  local values, answer, first = {}, nil, nil
  if window_ms ~= '' then
    values, answer = push_once(queue, window_ms, args)
    first = queue.last - #values + 1
    table.insert(answer, 1, queue.new and 1 or 0)
  else
    first = next_numbers(queue, #args - PUSH_ARGS)
    for i = PUSH_ARGS + 1, #args do values[i - PUSH_ARGS] = args[i] end
    answer = { queue.new and 1 or 0, digits(first), digits(queue.last) }
  end
  local last = queue.last
  store(queue, priority, delay, ttl, first, checks ~= '', values)
  if producer ~= '' then
    -- The reply is stored last: if the messages were not stored, a repeat stores them.
    note_saved(queue)
    save_queue(queue)
    local fine, fault = pcall(remember_answer, queue.key, producer, sequence, first, last, queue.now, digest)
    if not fine then
      if not remembered_answer(queue.key, producer, sequence) then error(fault) end
      pcall(add_members, queue.key .. ':producers', { digits(queue.now), producer })
    end
  end
  if queue.waited >= queue.now then
    commit(queue, answer)
    if delay > 0 then poke_waiter(queue, queue.now + delay) else serve_waiters(queue) end
  end
  return answer
end

redis.register_function('hw_queue_push', function(keys, args)
  local K, delay, priority, ttl, producer = keys[1], tonumber(args[1]), args[2], args[3], args[4]
  local numbered, window_ms, checks = args[5], args[6], args[7]
  local sequence, digest = sequence_and_digest(numbered)
  if producer ~= '' then
    local first, last = remembered_answer(K, producer, sequence, digest)
    if first then return { 0, digits(first), digits(last) } end
    if last then return last end
  end
  return on_queue(K, push_new, args, delay, priority, ttl, producer, sequence, digest, window_ms, checks)
end)

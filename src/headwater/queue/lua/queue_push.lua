--[[
  hw_queue_push: put messages into a queue, all or none.
  Numbers are given here, in a row. A repeat of (producer, sequence) changes nothing and is answered
  as the first time; so is a message whose dedupe key was pushed within its window.

  KEYS   1 the queue
  ARGV   1 delay ms   2 level   3 ms to live or ''   4 producer or ''   5 its sequence
         6 ms for which dedupe keys are remembered, or '' when there are none
         then values; or, with dedupe keys: key, value, key, value, ...
  Reply  { 1 when the queue is new, first number, last number }
         with dedupe keys { 1 when the queue is new, number of each message }
         error HW_STALE <newest sequence> when the sequence is older than what is remembered
]]
-- Cuts values into spans of a bearable size, as if the first had some before it; returns the last
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

-- Makes what lies in a list out of values: runs, and entries where there are only a few. Runs end
-- where a pop is likely to, if so many messages lie before them.
local function elements_for(queue, first, life, values, before)
  local elements, from, mark, length = {}, 1, mark_of(life), run_length(queue)
  for _, to in ipairs(cut(values, length, RUN_BYTES, before % length)) do
    if to - from + 1 >= RUN_LEAST then
      elements[#elements + 1] = pack_run(first + from - 1, life, values, from, to)
    else
      for i = from, to do elements[#elements + 1] = digits(first + i - 1) .. mark .. values[i] end
    end
    from = to + 1
  end
  return elements
end

local function store_ready(queue, level, first, life, values)
  local key = set_key(queue, 'ready', level)
  local before = 0
  if #values >= RUN_LEAST then
    before = count_listed(queue)
    if before == 0 then queue.bundled = 0 end
  end
  local elements = elements_for(queue, first, life, values, before)
  for i = 1, #elements do queue.largest = math.max(queue.largest, #elements[i]) end
  queue.bundled = queue.bundled + #values - #elements
  for i = 1, #elements, 1000 do
    redis.call('RPUSH', key, unpack(elements, i, math.min(i + 999, #elements)))
  end
  serve_waiters(queue)
end

local function store_later(queue, level, delay, first, life, values)
  local from, due = 1, queue.now + delay
  for _, to in ipairs(cut(values, PARCEL_MESSAGES, PARCEL_BYTES, 0)) do
    local run = pack_run(first + from - 1, life, values, from, to)
    add_parcel(queue, 'later', level, 0, run, to - from + 1, due)
    from = to + 1
  end
  poke_waiter(queue, due)
end

local function store(queue, level, delay, ttl, first, values)
  if #values == 0 then return end
  local life = ttl == '' and 0 or queue.now + tonumber(ttl)
  if queue.levels == '' then queue.largest = 0 end
  use_level(queue, level)
  queue.pushed = queue.pushed + #values
  if delay > 0 then return store_later(queue, level, delay, first, life, values) end
  store_ready(queue, level, first, life, values)
end

-- Leaves out what was pushed before under the same key; gives the values that are new and the
-- number of each message. Nothing else is given numbers meanwhile: those of new ones are in a row.
local function push_once(queue, args)
  local values, numbers = {}, {}
  local prefix = queue.key .. ':dedupe:' .. digits(queue.generation) .. ':'
  for i = 7, #args, 2 do
    local key = prefix .. args[i]
    local known = redis.call('GET', key)
    if not known then
      known = digits(next_numbers(queue, 1))
      values[#values + 1] = args[i + 1]
      redis.call('SET', key, known, 'PX', args[6])
    end
    numbers[#numbers + 1] = known
  end
  return values, numbers
end

redis.register_function('hw_queue_push', function(keys, args)
  local K, delay, level, producer = keys[1], tonumber(args[1]), args[2], args[4]
  if producer ~= '' then
    local first, last = remembered_answer(K, producer, tonumber(args[5]))
    if first then return { 0, digits(first), digits(last) } end
    if last then return last end
  end
  local queue = load_queue(K)
  -- Keys of a queue of the same name that was deleted are not this one's.
  if queue.new then queue.generation = queue.us end
  local values, answer, first = {}, nil, nil
  if args[6] ~= '' then
    values, answer = push_once(queue, args)
    first = queue.last - #values + 1
    table.insert(answer, 1, queue.new and 1 or 0)
  else
    first = next_numbers(queue, #args - 6)
    for i = 7, #args do values[i - 6] = args[i] end
    answer = { queue.new and 1 or 0, digits(first), digits(queue.last) }
    if producer ~= '' then remember_answer(K, producer, tonumber(args[5]), first, queue.last, queue.now) end
  end
  store(queue, level, delay, args[3], first, values)
  save_queue(queue)
  return answer
end)

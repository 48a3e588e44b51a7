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
local function entry_maker(queue, ttl)
  if ttl == '' then
    return function(number, value) return number .. 'm' .. value end
  end
  local ends = string.format('%013.0f', queue.now + tonumber(ttl))
  return function(number, value) return number .. 't' .. ends .. value end
end

local function store_entries(queue, level, delay, entries)
  if #entries == 0 then return end
  if queue.levels == '' then queue.largest = 0 end
  for i = 1, #entries do queue.largest = math.max(queue.largest, #entries[i]) end
  use_level(queue, level)
  queue.pushed = queue.pushed + #entries
  if delay > 0 then
    for _, part in ipairs(cut(entries, size_of(entries))) do add_parcel(queue, 'later', level, 0, part, queue.now + delay) end
    return poke_waiter(queue, queue.now + delay)
  end
  local key = set_key(queue, 'ready', level)
  for i = 1, #entries, 1000 do
    redis.call('RPUSH', key, unpack(entries, i, math.min(i + 999, #entries)))
  end
  serve_waiters(queue)
end

-- Leaves out what was pushed before under the same key; gives the number of each.
local function push_once(queue, args, make)
  local entries, numbers = {}, {}
  local prefix = queue.key .. ':dedupe:' .. digits(queue.generation) .. ':'
  for i = 7, #args, 2 do
    local key = prefix .. args[i]
    local known = redis.call('GET', key)
    if not known then
      known = digits(next_numbers(queue, 1))
      entries[#entries + 1] = make(known, args[i + 1])
      redis.call('SET', key, known, 'PX', args[6])
    end
    numbers[#numbers + 1] = known
  end
  return entries, numbers
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
  local make, entries, answer = entry_maker(queue, args[3]), {}, nil
  if args[6] ~= '' then
    entries, answer = push_once(queue, args, make)
    table.insert(answer, 1, queue.new and 1 or 0)
  else
    local first = next_numbers(queue, #args - 6)
    for i = 7, #args do entries[i - 6] = make(digits(first + i - 7), args[i]) end
    answer = { queue.new and 1 or 0, digits(first), digits(queue.last) }
    if producer ~= '' then remember_answer(K, producer, tonumber(args[5]), first, queue.last, queue.now) end
  end
  store_entries(queue, level, delay, entries)
  save_queue(queue)
  return answer
end)

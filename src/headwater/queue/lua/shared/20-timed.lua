--[[
  Bundles that wait for a time: how they are added, found, changed and moved between the sorted sets.
  Nothing here fails half-way on damaged data: what cannot be read is put aside, and the rest is processed.

  Here a bundle is a table: its `set` ('delayed', 'unacked', 'retry' or 'dead'), its `name`, and the parts of
  the name: `number`, `priority`, `attempt`, `count`, and `varied` when deadlines differ.
]]
-- The cost of opening a bundle, besides its messages, in steps.
local OPEN_STEPS = 10

-- Digits of attempts and counts, cached because every name needs them.
local small = {}

local function small_digits(number)
  local text = small[number]
  if not text then
    text = digits(number)
    if number <= BUNDLE_MESSAGES then small[number] = text end
  end
  return text
end

local function name_of(number, priority, attempt, count, varied)
  return number .. ':' .. priority .. ':' .. small_digits(attempt) .. ':' .. small_digits(count) .. (varied and ':v' or '')
end

local function parse_name(set, name)
  local number, priority, attempt, count, varied =
    string.match(name, '^(%d+):(-?%d+):(%d+):(%d+)(:?v?)$')
  if not number then return nil end
  return {
    set = set, name = name, number = number, priority = priority, attempt = to_number(attempt),
    count = to_number(count), varied = varied == ':v',
  }
end

-- Puts the name of a bundle into a set by its time; `before` is its time if it is there.
local function put_name(queue, set, priority, time, name, before)
  if set == 'unacked' then
    local at = to_number(time)
    if at < queue.soonest then queue.soonest = at end
  end
  put_member(set_key(queue, set, priority), time, name, before)
end

-- Makes a new bundle of a set out of its text; returns its name.
local function add_bundle(queue, set, priority, attempt, text, count, time)
  local number = digits(next_numbers(queue, 1))
  local name = name_of(number, priority, attempt, count)
  put_text(queue, number, text)
  put_name(queue, set, priority, time, name)
  queue[set] = queue[set] + count
  return name
end

-- Removes a bundle from the set in which it waits. Its text is deleted at the end of the call.
local function drop_bundle(queue, bundle, time)
  drop_member(set_key(queue, bundle.set, bundle.priority), time, bundle.name)
  if queue.unused then queue.unused[#queue.unused + 1] = bundle.number else queue.unused = { bundle.number } end
  queue[bundle.set] = queue[bundle.set] - bundle.count
end

-- Writes what is left in a bundle whose text was read: `count` messages, possibly with another time.
local function rewrite_bundle(queue, bundle, text, count, before, time, varied)
  put_text(queue, bundle.number, text, bundle.text)
  drop_member(set_key(queue, bundle.set, bundle.priority), before, bundle.name)
  queue[bundle.set] = queue[bundle.set] - bundle.count + count
  bundle.text, bundle.count, bundle.varied = text, count, varied
  bundle.name = name_of(bundle.number, bundle.priority, bundle.attempt, count, varied)
  put_name(queue, bundle.set, bundle.priority, time, bundle.name)
end

-- Moves whole bundles of one priority to another set: { time, name, time, name, ... }, and the same with the
-- old times.
local function move_bundles(queue, from, to, priority, flat, before, count)
  if #flat == 0 then return end
  local names, source, target = {}, set_key(queue, from, priority), set_key(queue, to, priority)
  for i = 2, #flat, 2 do names[#names + 1] = flat[i] end
  redis.call('ZADD', target, unpack(flat))
  note_undo('zrems', target, names)
  redis.call('ZREM', source, unpack(names))
  note_undo('zadds', source, before)
  queue[from], queue[to] = queue[from] - count, queue[to] + count
end

-- ── What cannot be read ───────────────────────────────────────────────────────────────────────

local function put_aside(queue, what, count)
  append_texts(queue.key .. ':damaged', { what })
  queue.damaged = queue.damaged + count
end

-- Returns the bundle that a member of a set names; puts aside a member that is not a name.
local function bundle_at(queue, set, priority, member, time)
  local bundle = parse_name(set, member)
  if not bundle then
    drop_member(set_key(queue, set, priority), time, member)
    put_aside(queue, member, 0)
  end
  return bundle
end

-- Reads the text of a bundle, '' when it is missing.
local function text_of(queue, bundle)
  bundle.text = redis.call('HGET', queue.key .. ':bundles', bundle.number) or ''
  return bundle.text
end

-- Opens a bundle: returns its messages, and their deadlines if they differ. If some cannot be read, all of it
-- is put aside, and the readable ones continue with the time of the bundle.
local function open_timed(queue, bundle, time)
  local text = text_of(queue, bundle)
  local messages, deadlines = open_bundle(text)
  local lost = bundle.count - #messages
  if lost <= 0 then return messages, deadlines end
  put_aside(queue, text ~= '' and text or ('bundle ' .. bundle.name .. ' is missing'), lost)
  if #messages == 0 then
    drop_bundle(queue, bundle, time)
  else
    rewrite_bundle(queue, bundle, join_bundles(messages), #messages, time, time)
  end
  return messages
end

-- ── Messages of a bundle ──────────────────────────────────────────────────────────────────────

-- Finds a bundle by its number when one of its messages cannot be read, and so the count in its name is
-- unknown. Returns its time, or nil.
local function find_by_number(key, bundle)
  local names = {}
  for count = 1, BUNDLE_MESSAGES do
    for varied = 0, 1 do
      names[#names + 1] = name_of(bundle.number, bundle.priority, bundle.attempt, count, varied == 1)
    end
  end
  local times = redis.call('ZMSCORE', key, unpack(names))
  for i, name in ipairs(names) do
    if times[i] then
      bundle.name, bundle.count, bundle.varied = name, math.ceil(i / 2), i % 2 == 0
      return tonumber(times[i])
    end
  end
end

-- Finds the bundle that a receipt names, also when some of its messages have left since: then its name has
-- another count. Returns it, its time, its messages and their deadlines if they differ; or nil.
local function find_bundle(queue, set, name)
  local bundle = parse_name(set, name)
  if not bundle then return nil end
  local key = set_key(queue, set, bundle.priority)
  local time = tonumber(redis.call('ZSCORE', key, name) or nil)
  if time then return bundle, time, open_timed(queue, bundle, time) end
  local text = text_of(queue, bundle)
  if text == '' then return nil end
  local messages, deadlines = open_bundle(text)
  bundle.count, bundle.varied = #messages, deadlines ~= nil
  bundle.name = name_of(bundle.number, bundle.priority, bundle.attempt, bundle.count, bundle.varied)
  time = tonumber(redis.call('ZSCORE', key, bundle.name) or nil)
  if time then return bundle, time, messages, deadlines end
  time = find_by_number(key, bundle)
  if time then return bundle, time, open_timed(queue, bundle, time) end
end

-- Takes messages out of a bundle that was opened: those for which `leaves(message, deadline)` is
-- true. Returns them.
local function take_out(queue, bundle, messages, deadlines, time, leaves)
  local taken, kept, ends, earliest = {}, {}, deadlines and {}, deadlines and math.huge or time
  for i, message in ipairs(messages) do
    local deadline = deadlines and deadlines[i] or time
    if leaves(message, deadline) then
      taken[#taken + 1] = message
    else
      kept[#kept + 1] = message
      if deadlines then ends[#kept], earliest = deadline, math.min(earliest, deadline) end
    end
  end
  if #taken > 0 and #kept == 0 then
    drop_bundle(queue, bundle, time)
  elseif #taken > 0 then
    rewrite_bundle(queue, bundle, join_bundles(kept, ends), #kept, time, earliest, ends ~= nil)
  end
  return taken
end

-- Parses which messages of a bundle are meant: their numbers, "17...1,17...2", or "*" for all. Returns a
-- function that is true for those of them whose deadline is after a time.
local function chooser(numbers, after)
  if numbers == '*' then return function(_, deadline) return deadline > after end end
  local chosen, sub = {}, string.sub
  for number in string.gmatch(numbers, '%d+') do chosen[number] = true end
  return function(message, deadline) return deadline > after and chosen[sub(message, 1, 16)] end
end

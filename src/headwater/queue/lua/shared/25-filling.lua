--[[
  What one pop takes. A pop is a table that says what it may still take: `room` messages and `bytes`, out of
  a number of bundles that wait for a time (`steps`), skipping `wade` others that are damaged or have outlived
  their ttl. With `ack_ms` messages must be acknowledged within that time; with `reserve` they are not
  delivered yet but reserved for a blocked consumer. `texts` are bundles as they were stored, `count` messages
  in `size` bytes, of one `priority` and `attempt`: they become one bundle together. What is delivered follows
  in the table: for each bundle its name, or '' when there is nothing to acknowledge, its attempt and its texts.
]]
local WADE_STEPS = 2000
local TAKE_STEPS = 100
local RESERVE_MS = 2000

-- All fields exist from the start: growing a table is slow.
local function new_pop(room, ack_ms, reserve)
  return {
    room = room, bytes = CALL_BYTES, steps = TAKE_STEPS, wade = WADE_STEPS, ack_ms = ack_ms, reserve = reserve,
    priority = '', attempt = 0, texts = nil, count = 0, size = 0,
  }
end

local function is_full(pop)
  return pop.room <= 0 or pop.bytes <= 0 or pop.steps <= 0 or pop.wade <= 0
end

local function begin_bundle(pop, priority, attempt)
  pop.priority, pop.attempt, pop.texts, pop.count, pop.size = priority, attempt, {}, 0, 0
end

-- Delivers what was taken, as one bundle.
local function end_bundle(queue, pop)
  local n, count, priority, attempt, texts = #pop, pop.count, pop.priority, pop.attempt, pop.texts
  if count == 0 then return end
  local name = ''
  if pop.reserve then
    name = add_bundle(queue, 'retry', priority, attempt, join_bundles(texts), count, queue.now + RESERVE_MS)
  elseif pop.ack_ms then
    name = add_bundle(queue, 'unacked', priority, attempt + 1, join_bundles(texts), count, queue.now + pop.ack_ms)
  end
  if not pop.reserve then queue.popped = queue.popped + count end
  pop[n + 1], pop[n + 2], pop[n + 3] = name, attempt + 1, texts
  begin_bundle(pop, priority, attempt)
end

-- Makes room for a number of messages in the current bundle, and starts another one if it would be too large.
local function make_room(queue, pop, count, size)
  if pop.count > 0 and (pop.count + count > BUNDLE_MESSAGES or pop.size + size > BUNDLE_BYTES) then
    end_bundle(queue, pop)
  end
  pop.count, pop.size = pop.count + count, pop.size + size
  pop.room, pop.bytes = pop.room - count, pop.bytes - size
end

-- Puts aside a text that cannot be read. It counts for as many messages as it states, if that is possible;
-- returns how many.
local function pass_damaged(queue, pop, text)
  local kind, count = string.byte(text, 17, 18)
  if (kind ~= PACKED and kind ~= PACKED_CHECKED) or not count or count < 1 or count > BUNDLE_MESSAGES then count = 1 end
  put_aside(queue, text, count)
  pop.wade = pop.wade - count
  return count
end

-- Returns how many texts from a place on, up to another, are single messages that can be delivered together:
-- they are intact and live, were pushed by `until_us`, and fit one bundle. Then their size.
local function count_singles(queue, texts, from, to, until_us)
  -- Every message of a pop passes here, so names are looked up once.
  local byte, sub, size = string.byte, string.sub, 0
  for i = from, to do
    local text = texts[i]
    local digit, kind = byte(text, 16, 17)
    if (kind ~= ONE_CHECKED and kind ~= ONE) or digit < 48 or digit > 57 then
      if (kind ~= MORTAL_CHECKED and kind ~= MORTAL) or (select(2, read_bundle(text)) or 0) <= queue.now then
        return i - from, size
      end
    end
    if size + #text > BUNDLE_BYTES and i > from then return i - from, size end
    if until_us and (tonumber(sub(text, 1, 16)) or 0) > until_us then return i - from, size end
    size = size + #text
  end
  return to - from + 1, size
end

-- Takes single messages from a place on; returns how many.
local function take_singles(queue, pop, texts, from, until_us)
  local most = math.min(pop.room, BUNDLE_MESSAGES, #texts - from + 1)
  local count, size = count_singles(queue, texts, from, from + most - 1, until_us)
  if count == 0 then return 0 end
  make_room(queue, pop, count, size)
  if count == #texts and pop.count == count then
    pop.texts = texts
  else
    local found = pop.texts
    for i = from, from + count - 1 do found[#found + 1] = texts[i] end
  end
  return count
end

-- Takes one bundle, or the part of it that there is room for and that was pushed by `until_us`. Returns how
-- many of its messages were taken, and what is left of it, if anything.
local function take_text(queue, pop, text, until_us)
  local count, life = read_bundle(text)
  if not count then return pass_damaged(queue, pop, text) end
  local part = math.min(count, pop.room)
  if until_us then part = math.min(part, until_us - (tonumber(string.sub(text, 1, 16)) or 0) + 1) end
  if part <= 0 then return 0, text end
  if life > 0 and life <= queue.now then
    queue.expired, pop.wade = queue.expired + count, pop.wade - count
    return count
  end
  local taken, rest = text, nil
  if part < count then taken, rest = split_bundle(text, part) end
  if not taken then return pass_damaged(queue, pop, text) end
  make_room(queue, pop, part, #taken)
  pop.texts[#pop.texts + 1] = taken
  return part, rest
end

-- Takes bundles in their order, until the pop is full or a message was pushed after `until_us`, if given.
-- Returns how many bundles were taken entirely, how many messages these had together with the part that was
-- taken of the next one, and what is left of that, if it was divided.
local function fill(queue, pop, texts, until_us)
  local done, gone = 0, 0
  while done < #texts and not is_full(pop) do
    local count, rest = take_singles(queue, pop, texts, done + 1, until_us), nil
    if count > 0 then
      done = done + count
    else
      count, rest = take_text(queue, pop, texts[done + 1], until_us)
      if rest then return done, gone + count, rest end
      done = done + 1
    end
    gone = gone + count
  end
  return done, gone
end

--[[
  A *bag* is what one consumer gets, and how: `room` messages and `bytes` at most, passing over
  `wade` others; `ack` ms to acknowledge them, or nil; or, with `reserve`, not handed out yet but
  kept for it a while. In it: heads and elements, as they lay in a list, in turn. A head is the
  receipt of a parcel without the place; without ack it is "::attempt".

  What is being filled has `level`, `attempt`, `count`, `size`, its `elements`, and how many `runs`
  are among them.
]]
local WADE_STEPS = 4096
local RESERVE_MS = 2000

local function new_bag(room, ack, reserve)
  return { room = room, bytes = CALL_BYTES, wade = WADE_STEPS, ack = ack, reserve = reserve }
end

local function is_full(bag)
  return bag.room <= 0 or bag.bytes <= 0 or bag.wade <= 0
end

local function begin_parcel(bag, level, attempt)
  bag.level, bag.attempt, bag.elements, bag.runs, bag.count, bag.size = level, attempt, {}, 0, 0, 0
end

-- Packs what was put into a bag; most often it is all of one kind.
local function pack_of(bag)
  local elements = bag.elements
  if bag.runs == 0 then return pack_entries(elements) end
  if bag.runs < #elements then return pack_elements(elements) end
  return #elements == 1 and elements[1] or table.concat(elements)
end

-- Ends the parcel that is being filled, and hands it out if there is anything in it.
local function end_parcel(queue, bag)
  local n, count, level, attempt = #bag, bag.count, bag.level, bag.attempt
  if count == 0 then return end
  if bag.reserve then
    bag[n + 1] = add_parcel(queue, 'again', level, attempt, pack_of(bag), count, queue.now + RESERVE_MS)
  elseif bag.ack then
    bag[n + 1] = add_parcel(queue, 'held', level, attempt + 1, pack_of(bag), count, queue.now + bag.ack)
  else
    bag[n + 1] = '::' .. (attempt + 1)
  end
  bag[n + 2] = bag.elements
  if not bag.reserve then queue.popped = queue.popped + count end
  begin_parcel(bag, level, attempt)
end

-- Makes room for so many messages in what is being filled, or begins anew where it would be too much.
local function make_room(queue, bag, count, size)
  if bag.count > 0 and (bag.count + count > PARCEL_MESSAGES or bag.size + size > PARCEL_BYTES) then
    end_parcel(queue, bag)
  end
  bag.count, bag.size = bag.count + count, bag.size + size
  bag.room, bag.bytes = bag.room - count, bag.bytes - size
end

local function put_run(queue, bag, run, count)
  make_room(queue, bag, count, #run)
  bag.elements[#bag.elements + 1], bag.runs = run, bag.runs + 1
end

-- Passes over messages that have outlived their time.
local function pass_over(queue, bag, count)
  queue.expired, bag.wade = queue.expired + count, bag.wade - count
end

-- Puts aside what is neither an entry nor a run. What looks like a run counts for as many messages
-- as it says it holds, if that can be; returns how many.
local function pass_damaged(queue, bag, element)
  local count = is_run(element) and #element > 2 and struct.unpack('>I2', element, 2) or 1
  if count < 1 or count > PARCEL_MESSAGES then count = 1 end
  put_aside(queue, element, count)
  bag.wade = bag.wade - count
  return count
end

-- Puts what there is room for of a run into a bag, up to what was pushed after `until_us`, if given.
-- Returns how many of its messages are gone, and what stays of it, if anything.
local function bag_run(queue, bag, run, until_us)
  local count, first, life, stop = read_run(run, 1)
  if not count or stop ~= #run then return pass_damaged(queue, bag, run) end
  local part = math.min(count, bag.room, until_us and until_us - first + 1 or count)
  if part <= 0 then return 0, run end
  if life > 0 and life <= queue.now then
    pass_over(queue, bag, count)
    return count
  end
  if part == count then
    put_run(queue, bag, run, count)
    return count
  end
  put_run(queue, bag, part_of_run(run, 1, part), part)
  return part, part_of_run(run, part + 1, count)
end

-- How many entries, from a place on to another, may be handed out together: those that are sound
-- and live, were pushed by `until_us`, and fit a parcel. Also gives their size.
local function count_sound(queue, elements, from, to, until_us)
  -- Every entry of a pop passes here: a name that is looked up once counts.
  local byte, sub, size = string.byte, string.sub, 0
  for i = from, to do
    local entry = elements[i]
    local digit, kind = byte(entry, 16, 17)
    -- Where a run has the end of its life there is no digit.
    if kind ~= 109 or digit < 48 or digit > 57 then
      if kind ~= 116 or not is_entry(entry) or tonumber(sub(entry, 18, 30)) <= queue.now then
        return i - from, size
      end
    end
    if size + #entry > PARCEL_BYTES and i > from then return i - from, size end
    if until_us and (tonumber(sub(entry, 1, 16)) or 0) > until_us then return i - from, size end
    size = size + #entry
  end
  return to - from + 1, size
end

-- Puts entries into a bag, from a place on; returns how many.
local function bag_entries(queue, bag, elements, from, until_us)
  local most = math.min(bag.room, PARCEL_MESSAGES, #elements - from + 1)
  local count, size = count_sound(queue, elements, from, from + most - 1, until_us)
  if count == 0 then return 0 end
  make_room(queue, bag, count, size)
  if count == #elements and bag.count == count then
    bag.elements = elements
    return count
  end
  local found = bag.elements
  for i = from, from + count - 1 do found[#found + 1] = elements[i] end
  return count
end

-- Puts elements of a list into a bag, in their order, until it is full or something was pushed
-- after `until_us`. Returns how many it is done with, how many messages these were together with
-- the part that was taken of the next, and what stays of that, if it was divided.
local function fill_bag(queue, bag, elements, until_us)
  local done, gone = 0, 0
  while done < #elements and not is_full(bag) do
    local element = elements[done + 1]
    if is_run(element) then
      local count, rest = bag_run(queue, bag, element, until_us)
      gone = gone + count
      if rest then return done, gone, rest end
      done = done + 1
    else
      local count = bag_entries(queue, bag, elements, done + 1, until_us)
      if count == 0 then
        if until_us and (tonumber(string.sub(element, 1, 16)) or 0) > until_us then break end
        if is_entry(element) then pass_over(queue, bag, 1) else pass_damaged(queue, bag, element) end
        count = 1
      end
      done, gone = done + count, gone + count
    end
  end
  return done, gone
end

--[[
  Taking: which messages the next consumer gets.

  Levels from the highest down; in a level first what comes again, by time, then what is new. A
  delayed message takes its place as if it were pushed when it comes due. Nothing is moved ahead of
  time: what is due is taken from where it lies, so a backlog of it costs nothing. Only a deadline
  that passed is noted first, for at most LAPSE_STEPS parcels a call.
]]
local LAPSE_STEPS = 64

-- Parcels whose deadline is over come again, after their rest, or are given up.
-- Returns how many messages were given up, and whether there may be more to do.
local function lapse(queue, level, most)
  if queue.held == 0 then return 0, false end
  local key = set_key(queue, 'held', level)
  local lapsed = redis.call('ZRANGE', key, '-inf', queue.now, 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES')
  if #lapsed == 0 then return 0, false end
  local tries = most_attempts(queue)
  local again, dead, buried, doomed, returned = {}, {}, 0, 0, 0
  for i = 1, #lapsed, 2 do
    local parcel, score = parse_member(lapsed[i]), tonumber(lapsed[i + 1])
    if not parcel then
      redis.call('ZREM', key, lapsed[i])
      put_aside(queue, lapsed[i], 0)
    elseif parcel.varied then
      local entries, deadlines = open_parcel(queue, 'held', parcel)
      local over = {}
      for place = 1, #(entries or over) do
        if entries[place] ~= '' and (deadlines and deadlines[place] or score) <= queue.now then
          over[#over + 1], entries[place] = entries[place], ''
        end
      end
      if #over > 0 then
        shrink_parcel(queue, 'held', parcel, entries, deadlines, score)
        if tries > 0 and parcel.attempt >= tries then
          add_parcel(queue, 'dead', level, parcel.attempt, pack_entries(over), #over, queue.now)
          buried = buried + #over
        else
          add_parcel(queue, 'again', level, parcel.attempt, pack_entries(over), #over,
            score + rest_ms(queue, parcel.attempt))
        end
      end
    elseif tries > 0 and parcel.attempt >= tries then
      dead[#dead + 1], dead[#dead + 2] = queue.now, parcel.member
      doomed = doomed + parcel.count
    else
      again[#again + 1], again[#again + 2] = score + rest_ms(queue, parcel.attempt), parcel.member
      returned = returned + parcel.count
    end
  end
  move_parcels(queue, 'held', 'dead', level, dead, doomed)
  move_parcels(queue, 'held', 'again', level, again, returned)
  return buried + doomed, #lapsed == 2 * most
end

-- Takes what the bag has room for out of a parcel; the rest stays where it is. Nobody has a receipt
-- for what is not held, so the rest need not keep its places.
local function take_parcel(queue, set, parcel, score, bag)
  local record = redis.call('HGET', queue.key .. ':parcels', parcel.number)
  local elements, found = elements_of(record or '')
  check_parcel(queue, set, parcel, record, found)
  begin_parcel(bag, parcel.level, parcel.attempt)
  local done, gone, rest = fill_bag(queue, bag, elements)
  end_parcel(queue, bag)
  if gone < found then
    local kept = { rest or elements[done + 1] }
    for i = done + 2, #elements do kept[#kept + 1] = elements[i] end
    rewrite_parcel(queue, set, parcel, pack_elements(kept), found - gone, false, score)
  elseif found > 0 then
    drop_parcel(queue, set, parcel)
  end
end

-- Takes parcels of a set that are due, in order of time. Most often one or two are enough.
local function take_due(queue, set, level, bag)
  local key, step = set_key(queue, set, level), 2
  while queue[set] > 0 and not is_full(bag) do
    local due = redis.call('ZRANGE', key, '-inf', queue.now, 'BYSCORE', 'LIMIT', 0, step, 'WITHSCORES')
    if #due == 0 then return end
    step = 16
    for i = 1, #due, 2 do
      if is_full(bag) then return end
      local parcel = parse_member(due[i])
      if parcel then
        take_parcel(queue, set, parcel, due[i + 1], bag)
      else
        redis.call('ZREM', key, due[i])
        put_aside(queue, due[i], 0)
      end
    end
  end
end

-- How many elements of a list are looked at at once: as many as will be taken if each holds so many
-- messages, and so few that large ones do not pile up in memory.
local function step_of(queue, bag, each)
  local step = math.min(math.ceil(bag.room / each), PARCEL_MESSAGES)
  if queue.largest * step > bag.bytes then
    step = math.max(1, math.floor(bag.bytes / math.max(queue.largest, 1)))
  end
  return step
end

-- Takes from the list of a level, up to what was pushed after `until_ms`, if given.
-- Returns whether the list has nothing more to give until then.
local function take_ready(queue, level, bag, until_ms)
  local key, until_us = set_key(queue, 'ready', level), until_ms and until_ms * 1000
  local step = step_of(queue, bag, queue.bundled > 0 and run_length(queue) or 1)
  local passed, rest, more = 0, nil, true
  begin_parcel(bag, level, 0)
  while more and not is_full(bag) do
    local done, gone
    done, gone, rest = fill_bag(queue, bag, redis.call('LRANGE', key, passed, passed + step - 1), until_us)
    queue.bundled = queue.bundled - gone + done
    passed, more = passed + done, done == step
    -- Shorter runs than thought: more of them at once, but what is read in vain costs, too.
    if more then step = math.min(step_of(queue, bag, gone / done), 2 * step) end
  end
  end_parcel(queue, bag)
  if passed > 0 then redis.call('LTRIM', key, passed, -1) end
  if rest then redis.call('LSET', key, 0, rest) end
  return not more
end

local function take_new(queue, level, bag)
  while queue.later > 0 and not is_full(bag) do
    local due = redis.call('ZRANGE', set_key(queue, 'later', level), '-inf', queue.now, 'BYSCORE',
      'LIMIT', 0, 1, 'WITHSCORES')
    if #due == 0 then break end
    if take_ready(queue, level, bag, tonumber(due[2])) and not is_full(bag) then
      local parcel = parse_member(due[1])
      if parcel then
        take_parcel(queue, 'later', parcel, due[2], bag)
      else
        redis.call('ZREM', set_key(queue, 'later', level), due[1])
        put_aside(queue, due[1], 0)
      end
    end
  end
  return take_ready(queue, level, bag)
end

local function may_have_lapsed(queue)
  return queue.held > 0 and queue.soonest <= queue.now
end

local function find_soonest(queue)
  queue.soonest = math.huge
  for _, level in ipairs(levels_of(queue)) do
    local first = redis.call('ZRANGE', set_key(queue, 'held', level), 0, 0, 'WITHSCORES')[2]
    if first then queue.soonest = math.min(queue.soonest, tonumber(first)) end
  end
end

local function take_by_level(queue, bag, lapsing)
  local busy = false
  for _, level in ipairs(levels_of(queue)) do
    -- As few deadlines as will do are noted: a pop does not work ahead for others.
    local step, budget, more = 2, LAPSE_STEPS, false
    repeat
      if lapsing then more = select(2, lapse(queue, level, step)) end
      take_due(queue, 'again', level, bag)
      step, budget = 16, budget - step
    until not more or is_full(bag) or budget <= 0
    busy = busy or more
    if take_new(queue, level, bag) and bag.room > 0 then drop_empty_level(queue, level) end
    if is_full(bag) then return bag.room > 0 end
  end
  return busy
end

-- Fills a bag; returns whether there may be more that it had not the time to look at.
local function take(queue, bag)
  if queue.paused then return false end
  local lapsing = may_have_lapsed(queue)
  local busy = take_by_level(queue, bag, lapsing)
  if lapsing then find_soonest(queue) end
  return busy
end

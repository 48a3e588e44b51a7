--[[
  Taking: chooses the messages that the next consumer gets.

  Priorities from the highest down; of each first redelivered messages, by time, then new ones. A delayed
  message takes its place as if it were pushed when it becomes due. Nothing is moved ahead of time: due
  messages are taken from where they are, so a backlog of them costs nothing. Only deadlines that passed are
  processed first, for at most LAPSE_STEPS bundles per call.
]]
local LAPSE_STEPS = 64

-- ── What is redelivered ───────────────────────────────────────────────────────────────────────

-- Redelivers bundles whose deadline is over, after their delay, or gives them up. Returns how many messages
-- were given up, and whether there may be more to do.
local function lapse(queue, priority, most)
  if queue.unacked == 0 then return 0, false end
  local lapsed = redis.call('ZRANGE', set_key(queue, 'unacked', priority), '-inf', queue.now, 'BYSCORE',
    'LIMIT', 0, most, 'WITHSCORES')
  if #lapsed == 0 then return 0, false end
  local retry, retried, dead, died, given_up, doomed, returned = {}, {}, {}, {}, 0, 0, 0
  for i = 1, #lapsed, 2 do
    local time = tonumber(lapsed[i + 1])
    local bundle = bundle_at(queue, 'unacked', priority, lapsed[i], time)
    local rest = bundle and rest_ms(queue, bundle.attempt, bundle.number)
    if bundle and bundle.varied then
      local messages, deadlines = open_timed(queue, bundle, time)
      local over = take_out(queue, bundle, messages, deadlines, time,
        function(_, deadline) return deadline <= queue.now end)
      if #over > 0 then
        add_bundle(queue, rest and 'retry' or 'dead', priority, bundle.attempt, join_bundles(over), #over,
          rest and time + rest or queue.now)
        if not rest then given_up = given_up + #over end
      end
    elseif bundle and rest then
      retry[#retry + 1], retry[#retry + 2] = time + rest, bundle.name
      retried[#retried + 1], retried[#retried + 2] = time, bundle.name
      returned = returned + bundle.count
    elseif bundle then
      dead[#dead + 1], dead[#dead + 2] = queue.now, bundle.name
      died[#died + 1], died[#died + 2] = time, bundle.name
      doomed = doomed + bundle.count
    end
  end
  move_bundles(queue, 'unacked', 'dead', priority, dead, died, doomed)
  move_bundles(queue, 'unacked', 'retry', priority, retry, retried, returned)
  return given_up + doomed, #lapsed == 2 * most
end

-- Takes what the pop has room for out of a bundle; the rest stays where it is.
local function take_bundle(queue, pop, bundle, time)
  pop.steps = pop.steps - 1
  local texts, found = part_bundles(text_of(queue, bundle)), 0
  for i = 1, #texts do found = found + (read_bundle(texts[i]) or 0) end
  if found < bundle.count then
    texts = open_timed(queue, bundle, time)
    found = #texts
    if found == 0 then return end
  end
  begin_bundle(pop, bundle.priority, bundle.attempt)
  local room = pop.room
  local done, gone, rest = fill(queue, pop, texts)
  -- Messages that are reserved for a blocked consumer have been counted; their time is still to come.
  local since = tonumber(time)
  if since <= queue.now and room > pop.room then waits.note(queue, room - pop.room, since * 1000) end
  end_bundle(queue, pop)
  if gone == found then return drop_bundle(queue, bundle, time) end
  local kept = { rest or texts[done + 1] }
  for i = done + 2, #texts do kept[#kept + 1] = texts[i] end
  rewrite_bundle(queue, bundle, join_bundles(kept), found - gone, time, time)
end

-- Takes due bundles of a set, in order of time. Usually one or two are enough.
local function take_due(queue, set, priority, pop)
  local key, step = set_key(queue, set, priority), 2
  while queue[set] > 0 and not is_full(pop) do
    local due = redis.call('ZRANGE', key, '-inf', queue.now, 'BYSCORE', 'LIMIT', 0, step, 'WITHSCORES')
    if #due == 0 then return end
    step = 16
    for i = 1, #due, 2 do
      if is_full(pop) then return end
      local bundle = bundle_at(queue, set, priority, due[i], due[i + 1])
      if bundle then take_bundle(queue, pop, bundle, due[i + 1]) end
    end
  end
end

-- ── What is new ───────────────────────────────────────────────────────────────────────────────

-- Returns how many bundles of a list are read at once: as many as will be taken if each has that many
-- messages, and few enough that large ones do not accumulate in memory.
local function step_of(queue, pop, each)
  local step = math.min(math.ceil(pop.room / each), BUNDLE_MESSAGES)
  if queue.largest * step > pop.bytes then
    step = math.max(1, math.floor(pop.bytes / math.max(queue.largest, 1)))
  end
  return step
end

-- Counts how long `taken` messages of the first texts of a list waited. They are in the order of their
-- numbers, so usually the first and the last are enough, as if the others were evenly distributed.
function waits.note_texts(queue, texts, last, taken)
  if taken <= 0 then return end
  local newest = tonumber(string.sub(texts[last], 1, 16))
  local oldest = last == 1 and newest or tonumber(string.sub(texts[1], 1, 16))
  if not oldest or not newest then return end
  if waits.bucket((queue.us - oldest) / 1000) == waits.bucket((queue.us - newest) / 1000) then
    return waits.note(queue, taken, (oldest + newest) / 2)
  end
  for i = 1, last do
    local count, number = math.min(read_bundle(texts[i]) or 0, taken), tonumber(string.sub(texts[i], 1, 16))
    if count > 0 and number then waits.note(queue, count, number) end
    taken = taken - count
  end
end

-- Takes from the list of a priority, up to messages pushed after `until_ms`, if given. Returns whether the
-- list has nothing more until then.
local function take_ready(queue, priority, pop, until_ms)
  local key, until_us = set_key(queue, 'ready', priority), until_ms and until_ms * 1000
  local step = step_of(queue, pop, queue.bundled > 0 and ready_length(queue) or 1)
  local first, taken, passed, divided, rest, more = nil, nil, 0, nil, nil, true
  begin_bundle(pop, priority, 0)
  while more and not is_full(pop) do
    local texts, done, gone, room = redis.call('LRANGE', key, passed, passed + step - 1), nil, nil, pop.room
    done, gone, rest = fill(queue, pop, texts, until_us)
    waits.note_texts(queue, texts, done + (rest and 1 or 0), room - pop.room)
    queue.bundled = queue.bundled - gone + done
    -- What is taken is recorded, in case the call fails. Usually it is one step.
    if passed == 0 then
      first = texts
    elseif done > 0 then
      taken = taken or { first, passed }
      taken[#taken + 1], taken[#taken + 2] = texts, done
    end
    if rest then divided = texts[done + 1] end
    passed, more = passed + done, done == step
    -- Bundles are smaller than expected: read more of them at once, but not so many that most are read in
    -- vain.
    if more then step = math.min(step_of(queue, pop, gone / done), 2 * step) end
  end
  end_bundle(queue, pop)
  if passed > 0 then drop_first(key, passed, first, taken) end
  if rest then replace_first(key, rest, divided) end
  return not more
end

-- Takes due delayed bundles and bundles of the list, by time. Returns whether the list has nothing more.
local function take_new(queue, priority, pop)
  while queue.delayed > 0 and not is_full(pop) do
    local due = redis.call('ZRANGE', set_key(queue, 'delayed', priority), '-inf', queue.now, 'BYSCORE',
      'LIMIT', 0, 1, 'WITHSCORES')
    if #due == 0 then break end
    if take_ready(queue, priority, pop, tonumber(due[2])) and not is_full(pop) then
      local bundle = bundle_at(queue, 'delayed', priority, due[1], due[2])
      if bundle then take_bundle(queue, pop, bundle, due[2]) end
    end
  end
  return take_ready(queue, priority, pop)
end

-- ── All of it ─────────────────────────────────────────────────────────────────────────────────

local function may_have_lapsed(queue)
  return queue.unacked > 0 and queue.soonest <= queue.now
end

local function find_soonest(queue)
  queue.soonest = math.huge
  for _, priority in ipairs(priorities_of(queue)) do
    local first = redis.call('ZRANGE', set_key(queue, 'unacked', priority), 0, 0, 'WITHSCORES')[2]
    if first then queue.soonest = math.min(queue.soonest, tonumber(first)) end
  end
end

local function take_by_priority(queue, pop, lapsing)
  local busy, budget = false, LAPSE_STEPS
  for _, priority in ipairs(priorities_of(queue)) do
    -- As few deadlines as necessary are processed: a pop does not work ahead for others.
    local step, more = 2, false
    repeat
      if lapsing then
        more = budget <= 0 or select(2, lapse(queue, priority, step))
        budget = budget - step
      end
      take_due(queue, 'retry', priority, pop)
      step = 16
    until not more or is_full(pop) or budget <= 0
    busy = busy or more
    if take_new(queue, priority, pop) and pop.room > 0 then drop_empty_priority(queue, priority) end
    if is_full(pop) then return pop.room > 0 end
  end
  return busy
end

-- Takes the messages of a pop; returns whether there may be more, for which this call had no time.
local function take(queue, pop)
  if queue.paused then return false end
  if queue.limits then return quota.take(queue, pop) end
  local lapsing = may_have_lapsed(queue)
  local busy = take_by_priority(queue, pop, lapsing)
  if lapsing then find_soonest(queue) end
  return busy
end

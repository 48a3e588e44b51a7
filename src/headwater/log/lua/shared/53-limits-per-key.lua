--[[
  Limits per key of a group: how many messages of one tag are in flight, and how fast they are delivered.
  As for order by tag, clients note tags before messages are delivered (42-note-tags.lua).

    G:tags     zset  score: offset; member: "offset:tag", of messages that are not done; a tag is a digest
    G:keys     hash  tag -> "offset:deadline in ms " of each message of it that is in flight
    G:buckets  zset  tag -> when its token bucket is full again, in us; none when it is full
    G:kept     zset  scores are 0; member: "tag:offset of 16 digits" of each message that a limit has kept back

  A message that is kept back by the limit of its tag is due when a token is there; or, when too many messages
  of its tag are in flight, when one of them is settled, which makes the next one due. Every due message is
  checked again before it is delivered, so the limits do not depend on these times. A call may stop before it
  has made the next one due, so all messages that are kept back are checked again every half minute.
]]
-- How long a message is kept back at most before it is checked again; how many of a tag are due together; how
-- many are cut out of their ranges in one step.
per_key.look_ms, per_key.together, per_key.cuts = 30000, 500, 60

-- Returns whether there are limits per key.
function per_key.counted(group)
  local terms = group.limits
  return terms and (terms.most_of_key or terms.rate_of_key) and true or false
end

-- Returns the tags of messages by offset; without those that have none, or were never noted.
function per_key.tags_of(G, spans)
  local tags = {}
  for _, span in ipairs(spans) do
    for _, member in ipairs(redis.call('ZRANGE', G .. ':tags', digits(span[1]), digits(span[2]), 'BYSCORE')) do
      local offset, tag = string.match(member, '^(%d+):(.+)$')
      if tag then tags[tonumber(offset)] = tag end
    end
  end
  return tags
end

-- Returns the member of G:kept for a message: by offset within its tag.
function per_key.kept_member(tag, offset)
  local text = digits(offset)
  return tag .. ':' .. string.rep('0', 16 - #text) .. text
end

-- Returns the different tags among those by offset, as a list.
function per_key.listed(tags)
  local seen, list = {}, {}
  for _, tag in pairs(tags) do
    if not seen[tag] then seen[tag], list[#list + 1] = true, tag end
  end
  return list
end

-- Reads which messages of a tag are in flight: deadlines by offset, as texts, and how many.
function per_key.in_flight(text, now)
  local flying, count = {}, 0
  for offset, deadline in string.gmatch(text or '', '(%d+):(%d+) ') do
    if tonumber(deadline) > now then flying[offset], count = deadline, count + 1 end
  end
  return flying, count
end

-- Returns how much the limits of the tags of a range still allow, which the plan of a read keeps.
function per_key.load(G, group, plan, tags, now)
  local terms, missing = group.limits, {}
  for _, tag in ipairs(per_key.listed(tags)) do
    if not plan.keys[tag] then missing[#missing + 1] = tag end
  end
  if not missing[1] then return end
  local flying = terms.most_of_key and redis.call('HMGET', G .. ':keys', unpack(missing)) or {}
  local full = terms.rate_of_key and redis.call('ZMSCORE', G .. ':buckets', unpack(missing)) or {}
  local us = server_us()
  for i, tag in ipairs(missing) do
    local state = { room = math.huge, tokens = math.huge, waiting = 0, full = tonumber(full[i] or 0), text = flying[i] }
    if terms.most_of_key then state.room = terms.most_of_key - select(2, per_key.in_flight(flying[i], now)) end
    if terms.rate_of_key then state.tokens = limits.tokens(terms.rate_of_key, state.full, us) end
    plan.keys[tag] = state
  end
end

-- Returns when a message whose tag has reached a limit is due again.
function per_key.due(group, state, now)
  local rate = group.limits.rate_of_key
  if state.tokens > 0 or not rate then return now + per_key.look_ms end
  state.waiting = state.waiting + 1
  local wait = limits.wait(rate, state.full, server_us(), 1) + (state.waiting - 1) * rate.step
  return now + math.max(math.ceil(math.min(wait / 1000, per_key.look_ms)), 1)
end

-- Finds the messages of a range up to an offset that are kept back by the limits of their tags. Returns nil
-- when there are none; otherwise the parts of the range, of which those that are kept back have a deadline in
-- the future.
function per_key.part(G, group, plan, range, upto, now)
  local tags, any, parts, part = per_key.tags_of(G, { { range.first, upto } }), false, {}, nil
  per_key.load(G, group, plan, tags, now)
  for offset = range.first, upto do
    local tag, due = tags[offset], range.due
    local state = tag and plan.keys[tag]
    if state and (state.room <= 0 or state.tokens <= 0) then
      due, any = per_key.due(group, state, now), true
      plan.kept[#plan.kept + 1] = per_key.kept_member(tag, offset)
    elseif state then
      state.room, state.tokens = state.room - 1, state.tokens - 1
      plan.tags[offset] = tag
    end
    if part and part.due == due then
      part.last = offset
    else
      part = part_of(range, offset, offset)
      part.due = due
      parts[#parts + 1] = part
    end
  end
  if not any then return nil end
  if upto < range.last then parts[#parts + 1] = part_of(range, upto + 1, range.last) end
  return parts
end

-- Stores which messages of tags are in flight; flying: by tag, as in_flight returns them.
function per_key.write(G, flying)
  local words, gone = {}, {}
  for tag, deadlines in pairs(flying) do
    local text = {}
    for offset, deadline in pairs(deadlines) do text[#text + 1] = offset .. ':' .. deadline .. ' ' end
    if text[1] then
      words[#words + 1], words[#words + 2] = tag, table.concat(text)
    else
      gone[#gone + 1] = tag
    end
  end
  if words[1] then redis.call('HSET', G .. ':keys', unpack(words)) end
  if gone[1] then redis.call('HDEL', G .. ':keys', unpack(gone)) end
end

-- Returns whether anything is kept back.
function per_key.keeps(G)
  return redis.call('EXISTS', G .. ':kept') == 1
end

-- Counts the messages that are about to be delivered, and records those that are kept back.
function per_key.begin(G, group, plan, spans, now, retry)
  if plan.kept[1] then
    local words = {}
    for _, member in ipairs(plan.kept) do words[#words + 1], words[#words + 2] = 0, member end
    redis.call('ZADD', G .. ':kept', unpack(words))
  end
  local flying, spent, freed, terms, keeps = {}, {}, {}, group.limits, per_key.keeps(G)
  for _, span in ipairs(spans) do
    for offset = span[1], span[2] do
      local tag = plan.tags[offset]
      if tag then
        if keeps then freed[#freed + 1] = per_key.kept_member(tag, offset) end
        spent[tag] = (spent[tag] or 0) + 1
        flying[tag] = flying[tag] or per_key.in_flight(plan.keys[tag].text, now)
        flying[tag][digits(offset)] = retry and digits(now + retry)
      end
    end
  end
  if not next(spent) then return end
  if terms.rate_of_key then
    local us, words = server_us(), {}
    redis.call('ZREMRANGEBYSCORE', G .. ':buckets', '-inf', digits(us))
    for tag, count in pairs(spent) do
      words[#words + 1], words[#words + 2] = limits.spend(terms.rate_of_key, plan.keys[tag].full, us, count), tag
    end
    redis.call('ZADD', G .. ':buckets', unpack(words))
  end
  if terms.most_of_key and retry then per_key.write(G, flying) end
  if freed[1] then redis.call('ZREM', G .. ':kept', unpack(freed)) end
end

-- Calls back with ranges of so few offsets that one command can name them all.
function per_key.in_steps(spans, visit)
  local some, room = {}, flights.step
  for _, span in ipairs(spans) do
    local first = span[1]
    while first <= span[2] do
      local last = math.min(span[2], first + room - 1)
      some[#some + 1], room = { first, last }, room - (last - first + 1)
      first = last + 1
      if room == 0 then
        visit(some)
        some, room = {}, flights.step
      end
    end
  end
  if some[1] then visit(some) end
end

-- Gives messages that are in flight another deadline.
function per_key.hold(G, group, spans, deadline, now)
  if not group.limits.most_of_key then return end
  local tags = per_key.tags_of(G, spans)
  local list, flying = per_key.listed(tags), {}
  if not list[1] then return end
  for i, text in ipairs(redis.call('HMGET', G .. ':keys', unpack(list))) do
    flying[list[i]] = per_key.in_flight(text, now)
  end
  for offset, tag in pairs(tags) do flying[tag][digits(offset)] = digits(deadline) end
  per_key.write(G, flying)
end

-- Makes messages due that were kept back: the first of each of these tags, as many as there is room for. Some
-- may be due already, because no member has read since.
function per_key.promote(G, group, flying, now)
  local most = group.limits.most_of_key
  if not most then return end
  local offsets = {}
  for tag, deadlines in pairs(flying) do
    local room = most
    for _ in pairs(deadlines) do room = room - 1 end
    local found = room > 0 and redis.call('ZRANGE', G .. ':kept', '[' .. tag .. ':', '(' .. tag .. ';', 'BYLEX',
      'LIMIT', 0, math.min(room, per_key.together)) or {}
    for _, member in ipairs(found) do offsets[#offsets + 1] = tonumber(string.match(member, '%d+$')) end
  end
  per_key.make_due(G, group, offsets, now)
end

-- Makes messages due that were kept back, a few in one step.
function per_key.make_due(G, group, offsets, now)
  table.sort(offsets)
  for from = 1, #offsets, per_key.cuts do
    local args = {}
    for i = from, math.min(from + per_key.cuts - 1, #offsets) do
      args[#args + 1], args[#args + 2] = digits(offsets[i]), digits(offsets[i])
    end
    local old, new, parts = plan_cuts(G, args, 1)
    for _, part in ipairs(parts) do
      if not part.waits and part.due ~= PARKED then part.due = now end
      new[#new + 1] = part
    end
    if old[1] then replace_ranges(G, group, old, new) end
  end
end

-- Messages are no longer in flight; ended: they are also done. Waiting messages of their tags become due.
function per_key.land(G, group, spans, ended, now)
  local tags = per_key.tags_of(G, spans)
  local list, flying = per_key.listed(tags), {}
  if not list[1] then return end
  local texts = redis.call('HMGET', G .. ':keys', unpack(list))
  for i, tag in ipairs(list) do flying[tag] = per_key.in_flight(texts[i], now) end
  local kept, keeps = {}, per_key.keeps(G)
  for offset, tag in pairs(tags) do
    flying[tag][digits(offset)] = nil
    if keeps then kept[#kept + 1] = per_key.kept_member(tag, offset) end
  end
  per_key.write(G, flying)
  if ended then
    if keeps then redis.call('ZREM', G .. ':kept', unpack(kept)) end
    -- The tags of dead letters are kept: they may be redriven.
    if not group.burying_now then
      for _, span in ipairs(spans) do
        redis.call('ZREMRANGEBYSCORE', G .. ':tags', digits(span[1]), digits(span[2]))
      end
    end
  end
  if keeps then per_key.promote(G, group, flying, now) end
end

-- Notes the tags of messages, as a reader sends them, offset, tag, offset, tag, ... from a place on: those
-- from an offset on that were not delivered, or are pending. Returns the ranges of new messages.
function per_key.note(G, args, at, from, next_one, now)
  local words, ranges, range, view = {}, {}, nil, from < next_one and tag_order.view(G)
  for i = at, #args, 2 do
    local offset, tag = to_number(args[i]), args[i + 1]
    if tag ~= '' and offset >= from and (offset >= next_one or tag_order.is_pending(view, offset)) then
      words[#words + 1], words[#words + 2] = args[i], args[i] .. ':' .. tag
    end
    if offset < next_one then
      range = nil
    elseif range and range.last == offset - 1 then
      range.last = offset
    else
      range = { first = offset, last = offset, attempt = 0, due = now, expire = NEVER }
      ranges[#ranges + 1] = range
    end
  end
  if words[1] then redis.call('ZADD', G .. ':tags', unpack(words)) end
  return ranges
end

-- The limits of a group have changed: messages that were kept back are checked again, soon or at once.
function per_key.changed(G, group, now)
  local offsets = {}
  for _, member in ipairs(redis.call('ZRANGE', G .. ':kept', 0, flights.step - 1)) do
    offsets[#offsets + 1] = tonumber(string.match(member, '%d+$'))
  end
  per_key.make_due(G, group, offsets, now)
  if not per_key.counted(group) then
    redis.call('UNLINK', G .. ':tags', G .. ':keys', G .. ':buckets', G .. ':kept')
  end
end

-- Forgets the tags of messages that are no longer dead letters. If that fails, they do no harm.
function per_key.forget(G, group, ranges)
  if not per_key.counted(group) then return end
  for _, range in ipairs(ranges) do
    redis.pcall('ZREMRANGEBYSCORE', G .. ':tags', digits(range.first), digits(range.last))
  end
end

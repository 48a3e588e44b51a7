--[[
  hw_group_seek: set the position of a group: nothing before it is delivered, everything from it on is new.
  Pending messages are forgotten, also those that are unseen in a box or were about to be buried.
  KEYS   1 the stream
  ARGV   1 group   2 'first', 'last' or an offset up to last + 1
  Reply  { the offset, 1 when the position is set; 0 when there was too much to drop for one call: ask again }
         error HW_NO_GROUP
         error HW_RANGE <first> <last> when it is beyond the end of the stream
]]
local MOST_JUMPS = 16

-- Records what a group skips when it moves to an offset: from its oldest pending offset, or else its next, up
-- to there. Everything from there on is new, whatever was skipped before. If there are too many ranges, the
-- two oldest are combined, so that no skipped offset is ever shown as done.
local function note_jump(G, group, target)
  local f = redis.call('HMGET', G, 'start', 'jumps')
  local position, jumps = group_position(G), {}
  if to_number(f[1] or 0) > target then change(group, 'start', target) end
  for low, high in string.gmatch(f[2] or '', '(%d+)-(%d+) ') do
    low, high = to_number(low), math.min(to_number(high), target - 1)
    if low <= high then jumps[#jumps + 1] = { low, high } end
  end
  if position < target then jumps[#jumps + 1] = { position, target - 1 } end
  if #jumps > MOST_JUMPS then
    local oldest = table.remove(jumps, 1)
    jumps[1] = { math.min(oldest[1], jumps[1][1]), math.max(oldest[2], jumps[1][2]) }
  end
  local words = {}
  for i, jump in ipairs(jumps) do words[i] = digits(jump[1]) .. '-' .. digits(jump[2]) .. ' ' end
  local text = table.concat(words)
  if text ~= (f[2] or '') then change(group, 'jumps', text) end
end

redis.register_function{
  function_name = 'hw_group_seek',
  callback = function(keys, args)
    local K, name, position = keys[1], args[1], args[2]
    local G, stream = group_key(K, name), load_stream(K)
    local group = open_group(G, stream)
    if not group then return no_group() end
    local target = tonumber(position)
    if position == 'first' then target = stream.first end
    if position == 'last' then target = stream.last + 1 end
    if target > stream.last + 1 then
      return redis.error_reply('HW_RANGE ' .. digits(stream.first) .. ' ' .. digits(stream.last))
    end
    -- All boxes are known once everything is booked.
    book_group(G, group)
    save_group(G, group)
    if not drop_boxes(G) then return { target, 0 } end
    note_jump(G, group, target)
    lower_position(K, name, target)
    change(group, 'seeking', target)
    save_group(G, group)
    finish_seek(G, group)
    serve(K, name, stream)
    return { target, 1 }
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_group_info: get the state of a group.
  KEYS   1 the stream
  ARGV   1 group
  Reply  name, value, ...: next, ack_offset, pending, lag, missed, gaps { first, last, ... }, expired,
         dead (dead letters that are neither redriven nor discarded), max_pending or '', dead_letters
         (the stream they go to) or '', waiting (blocked members), members { member, last seen, ... }
         (the latest 1000), created_ms, seen_ms (time of the last read), abandoned (1 when retention no
         longer waits for it), new_since_ms (time of the oldest message that was not delivered) or '',
         pending_since_ms (time of the oldest that is pending) or '', pending_ranges, due (messages that
         are due again, counted in 128 ranges at most), redelivered (messages, since it began), paused
         (1 while nothing is delivered), ordered (1 when the group keeps the order of each tag), limits
         (52-limits.lua) or '', in_flight (messages, of a group that limits them) or ''
         error HW_NO_GROUP
]]
local COUNTED_RANGES = 128

-- Returns how many messages are due again, and how many ranges are pending.
local function count_due(G, now)
  local due = redis.call('ZRANGE', G .. ':due', '-inf', digits(now), 'BYSCORE', 'LIMIT', 0, COUNTED_RANGES)
  local messages, ranges = 0, redis.call('ZCARD', G .. ':pending')
  for _, start in ipairs(due) do
    local range = pending_at(G, start)
    if range then messages = messages + size_of(range) end
  end
  return messages, ranges
end

function looks.group(K, name)
  local G, stream = group_key(K, name), load_stream(K)
  local group = load_group(G, stream)
  if not group then return nil end
  local f, gaps = redis.call('HMGET', G, 'missed', 'expired', 'buried', 'created', 'gaps', 'redelivered', 'limits'), {}
  for number in string.gmatch(f[5] or '', '%d+') do gaps[#gaps + 1] = tonumber(number) end
  local oldest, due, ranges = group_position(G), 0, 0
  if group.pending > 0 then due, ranges = count_due(G, server_ms()) end
  return {
    'next', group.next,
    'ack_offset', oldest,
    'pending', group.pending,
    'lag', math.max(stream.last - math.max(group.next, stream.first) + 1, 0),
    'missed', tonumber(f[1] or 0),
    'gaps', gaps,
    'expired', tonumber(f[2] or 0),
    'dead', tonumber(f[3] or 0),
    'max_pending', group.max_pending > 0 and group.max_pending or group.max_pending < -1 and -1 - group.max_pending or '',
    'dead_letters', group.dead_letters,
    'waiting', redis.call('ZCARD', G .. ':waiters'),
    'members', redis.call('ZRANGE', G .. ':members', -1000, -1, 'WITHSCORES'),
    'created_ms', tonumber(f[4]),
    'seen_ms', group_seen(G),
    'abandoned', group.abandoned and 1 or 0,
    'new_since_ms', looks.time_at(K, stream, group.next),
    'pending_since_ms', group.pending > 0 and looks.time_at(K, stream, oldest) or '',
    'pending_ranges', ranges,
    'due', due,
    'redelivered', tonumber(f[6] or 0),
    'paused', group.max_pending < 0 and 1 or 0,
    'ordered', group.ordered and 1 or 0,
    'limits', f[7] or '',
    'in_flight', flights.count(G, group) or '',
  }
end

redis.register_function{
  function_name = 'hw_group_info',
  callback = function(keys, args)
    local K, name = keys[1], args[1]
    return looks.group(K, name) or no_group()
  end,
  flags = { 'no-writes' },
}

--[[
  hw_group_remove: remove a group; retention no longer waits for it.
  KEYS   1 the stream
  ARGV   1 group
  Reply  { 1 when it existed, 1 when it is gone; 0 when there was too much to drop for one call: ask again }
]]
redis.register_function{
  function_name = 'hw_group_remove',
  callback = function(keys, args)
    local K, name = keys[1], args[1]
    local known = load_group(group_key(K, name), load_stream(K)) and 1 or 0
    if not free_group(K, name) then return { known, 0 } end
    unlist_group(K, name)
    return { known, 1 }
  end,
  flags = { 'allow-oom' },
}

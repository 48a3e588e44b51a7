--[[
  Opening a group: every call that changes a group first completes what an earlier call left.
]]
-- Returns nil when there is no such group, or only one of an earlier stream of this name. wish: what a waiter
-- asked for, when the caller names its field, "w:<waiter>".
local function load_group(G, stream, ...)
  local f = redis.call('HMGET', G, 'next', 'pending', 'max_pending', 'dead_letters', 'due', 'handed',
    'era', 'torn', 'seeking', 'burying', 'abandoned', 'format', 'ordered', 'unnoted', 'limits', 'bucket',
    'draining', ...)
  check_format(f[12])
  if not f[1] or (f[7] or '') ~= stream.era then return nil end
  local group = {
    next = to_number(f[1]), pending = to_number(f[2]), max_pending = to_number(f[3]), dead_letters = f[4],
    due = to_number(f[5] or 0), handed = f[6] or '', torn = to_number(f[8] or 0),
    seeking = to_number(f[9] or 0), burying = f[10] or '', abandoned = (f[11] or '') ~= '', wish = f[18],
    ordered = f[13] == '1', unnoted = to_number(f[14] or 0), limits = limits.of(f[15]),
    bucket = to_number(f[16] or 0), draining = f[17] == '1', changed = 0,
  }
  group.noted = lanes.noted(group)
  return group
end

-- Makes pending ranges of the claims in boxes, and records whose boxes these are. They are counted already;
-- this is repeated if it stopped half-way.
local function book_group(G, group)
  if group.handed == '' then return end
  local served = {}
  for waiter, time, first, last, due, expire in string.gmatch(group.handed, HANDED) do
    redis.call('ZADD', G .. ':pending', first, first .. ':' .. last .. ':1:' .. expire)
    redis.call('ZADD', G .. ':due', due, first)
    served[#served + 1], served[#served + 2] = time, waiter
  end
  redis.call('ZADD', G .. ':served', unpack(served))
  change(group, 'handed', '')
end

-- Gives a deadline to ranges that have none because a call stopped half-way.
local function add_deadlines(G, group)
  local found = redis.call('ZRANGE', G .. ':pending', digits(group.torn), '+inf', 'BYSCORE',
    'LIMIT', 0, STEP_RANGES)
  local starts, lacking, doubled = {}, {}, {}
  for i, member in ipairs(found) do starts[i] = string.match(member, '^%d+') end
  if starts[1] then
    local dues = redis.call('ZMSCORE', G .. ':due', unpack(starts))
    local waiting = redis.call('ZMSCORE', G .. ':expired', unpack(starts))
    for i, start in ipairs(starts) do
      if not dues[i] and not waiting[i] then
        lacking[#lacking + 1], lacking[#lacking + 2] = '1', start
      elseif dues[i] and waiting[i] then
        doubled[#doubled + 1] = start
      end
    end
  end
  if lacking[1] then redis.call('ZADD', G .. ':due', unpack(lacking)) end
  if doubled[1] then redis.call('ZREM', G .. ':expired', unpack(doubled)) end
  change(group, 'due', 0)
  change(group, 'torn', #found == STEP_RANGES and tonumber(starts[#starts]) + 1 or 0)
end

local function book_unbooked(G, group)
  local words = {}
  for member in string.gmatch(redis.call('HGET', G, 'unbooked') or '', '(%S+) ') do
    words[#words + 1], words[#words + 2] = string.match(member, '^%d+'), member
  end
  if not words[1] then return end
  redis.call('ZADD', G .. ':pending', unpack(words))
  change(group, 'unbooked', '')
end

-- Everything pending is forgotten, and the group is at the offset that it seeks.
local function finish_seek(G, group)
  redis.call('UNLINK', G .. ':pending', G .. ':due', G .. ':expired', G .. ':failing', G .. ':tags',
    G .. ':keys', G .. ':lanes', G .. ':untagged', G .. ':flying')
  group.lanes = nil
  change(group, 'next', group.seeking)
  for _, field in ipairs({ 'pending', 'due', 'torn', 'seeking', 'unnoted' }) do change(group, field, 0) end
  for _, field in ipairs({ 'handed', 'burying', 'unbooked', 'draining' }) do change(group, field, '') end
  save_group(G, group)
end

-- Opens a group for a call that changes it, and completes what an earlier call left; returns nil when there
-- is no such group.
local function open_group(G, stream, ...)
  local group = load_group(G, stream, ...)
  if not group then return nil end
  if group.seeking > 0 then finish_seek(G, group) end
  if group.torn > 0 then
    book_group(G, group)
    book_unbooked(G, group)
    add_deadlines(G, group)
    save_group(G, group)
  end
  return group
end

local function no_group()
  return redis.error_reply('HW_NO_GROUP')
end

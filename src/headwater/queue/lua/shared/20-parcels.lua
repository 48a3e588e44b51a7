--[[
  Parcels: how they are made, opened, shrunk and moved. Nothing here can fail half-way on what it
  finds: a record that cannot be read is put aside, with all that is left of it.
]]
local function member_of(number, level, attempt, count, varied)
  return number .. ':' .. level .. ':' .. attempt .. ':' .. count .. (varied and ':v' or '')
end

local function parse_member(member)
  local number, level, attempt, count, varied =
    string.match(member, '^(%d+):(-?%d+):(%d+):(%d+)(:?v?)$')
  if not number then return nil end
  return {
    member = member, number = number, level = level, attempt = tonumber(attempt),
    count = tonumber(count), varied = varied == ':v',
  }
end

local function set_key(queue, set, level)
  return queue.key .. ':' .. set .. (set == 'dead' and '' or ':' .. level)
end

-- Puts a parcel into a set by its time.
local function put_parcel(queue, set, level, score, member)
  if set == 'held' and tonumber(score) < queue.soonest then queue.soonest = tonumber(score) end
  redis.call('ZADD', set_key(queue, set, level), score, member)
end

-- Puts entries into a new parcel of a set; returns its member.
local function add_parcel(queue, set, level, attempt, entries, score)
  local number = digits(next_numbers(queue, 1))
  local member = member_of(number, level, attempt, #entries)
  redis.call('HSET', queue.key .. ':parcels', number, cmsgpack.pack(entries))
  put_parcel(queue, set, level, score, member)
  queue[set] = queue[set] + #entries
  return member
end

local function size_of(entries)
  local size = 0
  for i = 1, #entries do size = size + #entries[i] end
  return size
end

-- Cuts entries into parcels of a bearable size: each is rewritten whole when a part of it leaves.
local function cut(entries, size)
  if #entries <= PARCEL_MESSAGES and (size <= PARCEL_BYTES or #entries == 1) then return { entries } end
  local parts, part, room = {}, {}, PARCEL_BYTES
  for i = 1, #entries do
    local entry = entries[i]
    if #part > 0 and (#part == PARCEL_MESSAGES or #entry > room) then
      parts[#parts + 1] = part
      part, room = {}, PARCEL_BYTES
    end
    part[#part + 1] = entry
    room = room - #entry
  end
  parts[#parts + 1] = part
  return parts
end

local function put_aside(queue, what, count)
  redis.call('RPUSH', queue.key .. ':aside', what)
  queue.damaged = queue.damaged + count
end

local function is_entry(entry)
  if type(entry) ~= 'string' then return false end
  if not string.find(entry, '^%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d[mt]') then return false end
  return string.byte(entry, 17) == 109 or string.find(entry, '^%d%d%d%d%d%d%d%d%d%d%d%d%d', 18) ~= nil
end

-- Leaves out what is damaged and what has outlived its time; most often all may stay.
-- Returns what is left, and its size.
local function sift(queue, entries)
  -- Every entry of a pop passes here: a name that is looked up once counts.
  local byte, sound, size = string.byte, true, 0
  for i = 1, #entries do
    local entry = entries[i]
    local last, kind = byte(entry, 16, 17)
    if kind ~= 109 or last < 48 or last > 57 then
      sound = false
      break
    end
    size = size + #entry
  end
  if sound then return entries, size end
  local kept = {}
  for i = 1, #entries do
    local entry = entries[i]
    if not is_entry(entry) then
      put_aside(queue, entry, 1)
    elseif byte(entry, 17) == 116 and tonumber(string.sub(entry, 18, 30)) <= queue.now then
      queue.expired = queue.expired + 1
    else
      kept[#kept + 1] = entry
    end
  end
  return kept, size_of(kept)
end

-- Opens the record of a parcel: its entries, and their deadlines if they vary; places that cannot
-- be read are as if empty. Returns nil when there is no record or none of it can be read.
-- Then come how many are left in it, and the record itself.
local function open_record(queue, number)
  local blob = redis.call('HGET', queue.key .. ':parcels', number)
  if not blob then return nil end
  local fine, found = pcall(cmsgpack.unpack, blob)
  if not fine or type(found) ~= 'table' then return nil, nil, 0, blob end
  local deadlines
  if type(found[1]) == 'table' then deadlines, found = found[1], found[2] end
  if type(found) ~= 'table' then return nil, nil, 0, blob end
  local left, kind_of = 0, type
  for i = 1, table.maxn(found) do
    local entry = found[i]
    if kind_of(entry) ~= 'string' then
      found[i] = ''
    elseif entry ~= '' then
      left = left + 1
    end
  end
  return found, deadlines, left, blob
end

local function drop_parcel(queue, set, parcel)
  redis.call('ZREM', set_key(queue, set, parcel.level), parcel.member)
  redis.call('HDEL', queue.key .. ':parcels', parcel.number)
  queue[set] = queue[set] - parcel.count
end

-- Gives the entries and deadlines of a parcel in a set; puts aside what of it cannot be read.
local function open_parcel(queue, set, parcel)
  local entries, deadlines, left, blob = open_record(queue, parcel.number)
  if not entries then
    drop_parcel(queue, set, parcel)
    put_aside(queue, blob or ('parcel ' .. parcel.member .. ' without a record'), parcel.count)
  elseif left < parcel.count then
    put_aside(queue, blob, parcel.count - left)
  end
  return entries, deadlines
end

-- Writes what stays in a parcel of a set; places keep their numbers, for receipts name them.
local function shrink_parcel(queue, set, parcel, entries, deadlines, score)
  local left, earliest = 0, nil
  for i = 1, #entries do
    if entries[i] ~= '' then
      left = left + 1
      local ends = deadlines and deadlines[i]
      if ends and (not earliest or ends < earliest) then earliest = ends end
    end
  end
  if left == 0 then return drop_parcel(queue, set, parcel) end
  local key = set_key(queue, set, parcel.level)
  redis.call('HSET', queue.key .. ':parcels', parcel.number,
    cmsgpack.pack(deadlines and { deadlines, entries } or entries))
  redis.call('ZREM', key, parcel.member)
  queue[set] = queue[set] - parcel.count + left
  parcel.count, parcel.varied = left, deadlines ~= nil
  parcel.member = member_of(parcel.number, parcel.level, parcel.attempt, left, deadlines ~= nil)
  put_parcel(queue, set, parcel.level, earliest or score, parcel.member)
end

-- Moves whole parcels between sets, all of one level: { score, member, score, member, ... }.
local function move_parcels(queue, from, to, level, flat, count)
  if #flat == 0 then return end
  redis.call('ZADD', set_key(queue, to, level), unpack(flat))
  local members = {}
  for i = 2, #flat, 2 do members[#members + 1] = flat[i] end
  redis.call('ZREM', set_key(queue, from, level), unpack(members))
  queue[from], queue[to] = queue[from] - count, queue[to] + count
end

-- Finds the parcel of a receipt in a set, also when some of it has left since: its member says so.
-- Returns its score, or nil; its entries, or nil when they cannot be read; and their deadlines.
local function find_parcel(queue, set, parcel)
  local key = set_key(queue, set, parcel.level)
  local score = tonumber(redis.call('ZSCORE', key, parcel.member) or nil)
  local entries, deadlines, left = open_record(queue, parcel.number)
  if score or not entries then return score, entries, deadlines end
  parcel.count, parcel.varied = left, deadlines ~= nil
  parcel.member = member_of(parcel.number, parcel.level, parcel.attempt, left, parcel.varied)
  return tonumber(redis.call('ZSCORE', key, parcel.member) or nil), entries, deadlines
end

-- Reads places in a parcel: "1,5,6", or "*" for all.
local function places_of(text, count)
  local places = {}
  if text == '*' then
    for i = 1, count do places[i] = i end
  else
    for place in string.gmatch(text, '%d+') do places[#places + 1] = tonumber(place) end
  end
  return places
end

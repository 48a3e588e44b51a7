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

-- How many messages lie in lists. Where nothing does there are none, whatever damaged runs have said.
local function count_listed(queue)
  local total = 0
  for _, level in ipairs(levels_of(queue)) do
    total = total + redis.call('LLEN', set_key(queue, 'ready', level))
  end
  return total > 0 and total + queue.bundled or 0
end

-- Puts a parcel into a set by its time.
local function put_parcel(queue, set, level, score, member)
  if set == 'held' and tonumber(score) < queue.soonest then queue.soonest = tonumber(score) end
  redis.call('ZADD', set_key(queue, set, level), score, member)
end

-- Makes a new parcel of a set out of packs; returns its member.
local function add_parcel(queue, set, level, attempt, packs, count, score)
  local number = digits(next_numbers(queue, 1))
  local member = member_of(number, level, attempt, count)
  redis.call('HSET', queue.key .. ':parcels', number, packs)
  put_parcel(queue, set, level, score, member)
  queue[set] = queue[set] + count
  return member
end

local function put_aside(queue, what, count)
  redis.call('RPUSH', queue.key .. ':aside', what)
  queue.damaged = queue.damaged + count
end

-- Opens the record of a parcel: its entries, and their deadlines if they vary. Returns nil when
-- there is no record or none of it can be read. Then come how many are left in it, and the record.
local function open_record(queue, number)
  local record = redis.call('HGET', queue.key .. ':parcels', number)
  if not record then return nil end
  local entries, deadlines = open_packs(record)
  local left = 0
  for i = 1, #entries do
    if entries[i] ~= '' then left = left + 1 end
  end
  if #entries == 0 then entries = nil end
  return entries, deadlines, left, record
end

local function drop_parcel(queue, set, parcel)
  redis.call('ZREM', set_key(queue, set, parcel.level), parcel.member)
  redis.call('HDEL', queue.key .. ':parcels', parcel.number)
  queue[set] = queue[set] - parcel.count
end

-- Puts aside what of a parcel cannot be read, when less was found in its record than it had.
local function check_parcel(queue, set, parcel, record, found)
  if found == 0 then drop_parcel(queue, set, parcel) end
  if found < parcel.count then
    put_aside(queue, record or ('parcel ' .. parcel.member .. ' without a record'), parcel.count - found)
  end
end

-- Gives the entries and deadlines of a parcel in a set; puts aside what of it cannot be read.
local function open_parcel(queue, set, parcel)
  local entries, deadlines, left, record = open_record(queue, parcel.number)
  check_parcel(queue, set, parcel, record, left or 0)
  return entries, deadlines
end

-- Writes what stays in a parcel of a set.
local function rewrite_parcel(queue, set, parcel, packs, left, varied, score)
  redis.call('HSET', queue.key .. ':parcels', parcel.number, packs)
  redis.call('ZREM', set_key(queue, set, parcel.level), parcel.member)
  queue[set] = queue[set] - parcel.count + left
  parcel.count, parcel.varied = left, varied
  parcel.member = member_of(parcel.number, parcel.level, parcel.attempt, left, varied)
  put_parcel(queue, set, parcel.level, score, parcel.member)
end

-- Writes which entries stay in a parcel; places keep their numbers, for receipts name them.
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
  rewrite_parcel(queue, set, parcel, pack_entries(entries, deadlines), left, deadlines ~= nil, earliest or score)
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

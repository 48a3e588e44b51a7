--[[
  A channel: n shards behind one name. M is the channel's key, "hw:c:{<name>}"; S is that of a
  shard, "hw:cs:{<name>/<epoch>/<shard>}". A change of the number of shards begins a new epoch, so
  the shards of two layouts never share a key.

    M           hash   format, epoch, shards; during a change of layout: old_epoch, old_shards, and
                       phase: 'closing' or 'moving'. phase is 'deleting' when the channel is being deleted
    S           hash   format, token, holder, until: the lease; done: the token whose lease ended with nothing
                       left; generation; turn: places given, modulo FAIR; opened; closed; added: members
                       given to adds; entered: those of them that were not dirty before
    S:ready     zset   member -> score: dirty, and may be reserved
    S:since     zset   member -> the ms in which it became dirty
    S:later     zset   member -> the ms before which it must not be reserved
    S:wish      zset   member -> its score from then on
    S:held      zset   member -> score: reserved by the holder
    S:made      hash   member -> the generation in which it was reserved

  A member is in ready or in later, never in both, and may be in held as well: then it became dirty
  again after it was reserved. Reserving it again gives it another generation, and a commit only
  removes the generation it names.

  A shard accepts members once a client has opened it, which has read that it is in the layout. A server that
  has lost a layout in a failover does not know its shards: whoever still uses it is refused, and reads the layout
  again. A closed shard accepts nothing more. When it is empty its hash is kept as a mark for a week, so that a
  client that still uses the old layout is refused instead of writing where no client reads.
]]
-- One of this many places goes to the member that has waited longest, whatever the scores.
local FAIR = 8
local DUE_STEP = 250
local MARK_MS = 7 * 24 * 3600 * 1000

-- Returns the error of a shard that accepts nothing; nil when it accepts members.
local function refused_by(closed, opened)
  if closed then return redis.error_reply('HW_CLOSED') end
  if not opened then return redis.error_reply('HW_UNOPENED') end
end

local function load_shard(S)
  local f = redis.call('HMGET', S, 'token', 'holder', 'until', 'generation', 'turn', 'closed', 'done',
    'format', 'opened')
  check_format(f[8])
  return {
    token = tonumber(f[1] or 0), holder = f[2] or '', till = tonumber(f[3] or 0),
    generation = tonumber(f[4] or 0), turn = tonumber(f[5] or 0), closed = f[6] and true,
    done = tonumber(f[7] or 0), opened = f[9],
  }
end

-- Returns the error of a shard that accepts nothing; reads less than load_shard.
local function refusal_of(S)
  local f = redis.call('HMGET', S, 'closed', 'format', 'opened')
  check_format(f[2])
  return refused_by(f[1], f[3])
end

local function channel_size(S)
  return redis.call('ZCARD', S .. ':ready') + redis.call('ZCARD', S .. ':later')
end

-- Returns those of some members that wait for a later time: score, member, ..., and the members.
local function waiting_for_later(S, members)
  local rows, found = {}, {}
  local scores = redis.call('ZMSCORE', S .. ':wish', unpack(members))
  for i, score in ipairs(scores) do
    if score then
      found[#found + 1] = members[i]
      rows[#rows + 1], rows[#rows + 2] = score, members[i]
    end
  end
  return rows, found
end

local function wait_no_longer(S, members)
  redis.call('ZREM', S .. ':later', unpack(members))
  redis.call('ZREM', S .. ':wish', unpack(members))
end

local function ready_rows(S, rows, since)
  local ages = {}
  for i = 1, #rows, 2 do ages[i], ages[i + 1] = since, rows[i + 1] end
  note_moved(rows, 2, 2)
  local changed = redis.call('ZADD', S .. ':ready', 'LT', 'CH', unpack(rows))
  redis.call('ZADD', S .. ':since', 'LT', unpack(ages))
  return changed
end

--[[
  Marks members as dirty; they may be reserved at once. rows: score, member, ..., ICK_ROWS at most. A member
  that waited for a later time no longer waits and keeps the lower score. since: when they became dirty.
  Returns how many were new or had their score lowered.
]]
local function add_ready(S, rows, since)
  local found = {}
  if redis.call('EXISTS', S .. ':later') == 1 then
    local members, waited = {}, nil
    for i = 2, #rows, 2 do members[#members + 1] = rows[i] end
    waited, found = waiting_for_later(S, members)
    if #waited > 0 then ready_rows(S, waited, since) end
  end
  local changed = ready_rows(S, rows, since)
  if #found > 0 then wait_no_longer(S, found) end
  return changed
end

--[[
  Marks members as dirty, but not to be reserved before a time. A member that may be reserved now stays so;
  the earlier of two times and the lower of two scores apply.
]]
local function add_later(S, rows, not_before)
  local members, ready, wish, later = {}, {}, {}, {}
  for i = 2, #rows, 2 do members[#members + 1] = rows[i] end
  local scores = redis.call('ZMSCORE', S .. ':ready', unpack(members))
  for i, member in ipairs(members) do
    if scores[i] then
      ready[#ready + 1], ready[#ready + 2] = rows[2 * i - 1], member
    else
      wish[#wish + 1], wish[#wish + 2] = rows[2 * i - 1], member
      later[#later + 1], later[#later + 2] = not_before, member
    end
  end
  local changed = 0
  if #ready > 0 then changed = redis.call('ZADD', S .. ':ready', 'LT', 'CH', unpack(ready)) end
  if #wish > 0 then
    note_moved(wish, 2, 2)
    redis.call('ZADD', S .. ':later', 'LT', unpack(later))
    changed = changed + redis.call('ZADD', S .. ':wish', 'LT', 'CH', unpack(wish))
  end
  return changed
end

-- Makes members whose time has come ready, a bounded number of them.
local function ripen(S, now)
  local due = redis.call('ZRANGEBYSCORE', S .. ':later', '-inf', now, 'LIMIT', 0, DUE_STEP)
  if #due == 0 then return end
  local rows = waiting_for_later(S, due)
  if #rows > 0 then ready_rows(S, rows, now) end
  wait_no_longer(S, due)
end

-- Makes some reserved members dirty again; returns whether there are more.
local function give_back(S, now)
  local rows = redis.call('ZRANGE', S .. ':held', 0, DUE_STEP - 1, 'WITHSCORES')
  if #rows == 0 then return false end
  local members = {}
  for i = 1, #rows, 2 do members[#members + 1] = rows[i] end
  add_ready(S, ick_swap(rows), now)
  redis.call('ZREM', S .. ':held', unpack(members))
  redis.call('HDEL', S .. ':made', unpack(members))
  return #members == DUE_STEP
end

-- The lease ends when nothing is reserved any more; the token stays, and the next one is higher.
local function end_lease_if_idle(S, token)
  if redis.call('EXISTS', S .. ':held') == 1 then return end
  redis.call('HSET', S, 'holder', '', 'until', 0, 'done', token)
end

-- Returns whether a batch may still change its shard; nil and the error when it may not.
local function check_token(S, token)
  local shard = load_shard(S)
  if token == shard.token then return shard end
  if token == shard.done then return nil end
  return nil, redis.error_reply('HW_LEASE ' .. digits(shard.token) .. ' ' .. shard.holder)
end

-- Returns the generations of members at every second place of a list, from `first` on.
local function made_of(S, list, first)
  local made = {}
  for i = first, #list, 2 * ICK_ROWS do
    local members = {}
    for j = i, math.min(i + 2 * ICK_ROWS - 1, #list), 2 do members[#members + 1] = list[j] end
    for _, generation in ipairs(redis.call('HMGET', S .. ':made', unpack(members))) do
      made[#made + 1] = generation
    end
  end
  return made
end

-- Adds rows of score, member, ... from `first` on; returns how many members were not dirty before, and how
-- many scores fell.
local function add_rows(S, args, first, not_before, since)
  local changed, before = 0, channel_size(S)
  for i = first, #args, 2 * ICK_ROWS do
    local rows = { unpack(args, i, math.min(i + 2 * ICK_ROWS - 1, #args)) }
    if not_before then
      changed = changed + add_later(S, rows, not_before)
    else
      changed = changed + add_ready(S, rows, since)
    end
  end
  local new = channel_size(S) - before
  return { new, changed - new }
end

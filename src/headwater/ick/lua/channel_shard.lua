--[[
  hw_channel_shard: get the state of a shard.
  KEYS   1 the shard
  Reply  { name, value, ... }: ready, later, reserved (number of members in each), token, holder,
         until (the lease), now, since (ms in which the longest waiting member became dirty, or 0),
         closed (1 when it is), added (members given to adds), entered (those that were not dirty before)
]]
function looks.shard(S)
  local shard = load_shard(S)
  local counts = redis.call('HMGET', S, 'added', 'entered')
  local oldest = redis.call('ZRANGE', S .. ':since', 0, 0, 'WITHSCORES')[2]
  return {
    'ready', redis.call('ZCARD', S .. ':ready'), 'later', redis.call('ZCARD', S .. ':later'),
    'reserved', redis.call('ZCARD', S .. ':held'), 'token', shard.token, 'holder', shard.holder,
    'until', shard.till, 'now', server_ms(), 'since', tonumber(oldest or 0),
    'closed', shard.closed and 1 or 0,
    'added', tonumber(counts[1] or 0), 'entered', tonumber(counts[2] or 0),
  }
end

redis.register_function{
  function_name = 'hw_channel_shard',
  callback = function(keys) return looks.shard(keys[1]) end,
  flags = { 'no-writes' },
}

--[[
  hw_channel_scan: get a page of a shard's members, in no order. Changes nothing.
  A member that is in the set during the whole scan is returned at least once.
  KEYS   1 the shard
  ARGV   1 'ready', 'later' or 'held'   2 cursor, '0' to begin   3 about how many
  Reply  { next cursor, '0' at the end, { member, score, member, score, ... } }
]]
redis.register_function{
  function_name = 'hw_channel_scan',
  callback = function(keys, args)
    local S, place, cursor, count = keys[1], args[1], args[2], args[3]
    local set = place == 'later' and 'wish' or place
    return redis.call('ZSCAN', S .. ':' .. set, cursor, 'COUNT', count)
  end,
  flags = { 'no-writes' },
}

--[[
  hw_channel_enter: open a shard that is in the layout, so that it accepts members. A closed one stays closed.
  KEYS   1 the shard
  Reply  1
]]
redis.register_function{
  function_name = 'hw_channel_enter',
  callback = function(keys)
    redis.call('HSET', keys[1], 'opened', 1)
    return 1
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_channel_close: close a shard, which then accepts nothing more. When its lease has ended, reserved
  members become dirty again, some in each call, and the token of that lease is no longer valid.
  KEYS   1 the shard
  Reply  the ms until which its lease lasts, 0 when it has none, -1 when the call must be repeated
]]
local function close_shard(S, shard, now)
  redis.call('HSET', S, 'closed', 1)
  if shard.holder ~= '' and shard.till > now then return shard.till end
  if redis.call('EXISTS', S .. ':held') == 1 then
    if give_back(S, now) then return -1 end
    redis.call('HSET', S, 'token', next_by_clock(shard.token), 'holder', '', 'until', 0)
  end
  return 0
end

redis.register_function{
  function_name = 'hw_channel_close',
  callback = function(keys)
    local shard = load_shard(keys[1])
    return on_shard(keys[1], close_shard, shard, server_ms())
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_channel_page: get some members of a closed shard, to be added to their new shards.
  KEYS   1 the shard
  ARGV   1 how many at most
  Reply  { member, score, ms before which it must not be reserved or 0, ms since which it is dirty,
           member, score, ... }
]]
redis.register_function{
  function_name = 'hw_channel_page',
  callback = function(keys, args)
    local S, most, rows = keys[1], tonumber(args[1]), {}
    local function page(set, times, until_then)
      local found = redis.call('ZRANGE', S .. set, 0, most - #rows / 4 - 1, 'WITHSCORES')
      local members = {}
      for i = 1, #found, 2 do members[#members + 1] = found[i] end
      if #members == 0 then return end
      local at = redis.call('ZMSCORE', S .. times, unpack(members))
      for i, member in ipairs(members) do
        local time = at[i] or '0'
        rows[#rows + 1], rows[#rows + 2] = member, found[2 * i]
        rows[#rows + 1], rows[#rows + 2] = until_then and time or '0', until_then and '0' or time
      end
    end
    page(':ready', ':since', false)
    if #rows / 4 < most then page(':wish', ':later', true) end
    return rows
  end,
  flags = { 'no-writes' },
}

--[[
  hw_channel_forget: remove members of a closed shard that are in their new shards.
  KEYS   1 the shard
  ARGV   1.. members
  Reply  how many members are left
]]
local function forget_members(S, members)
  note_moved(members, 1, 1)
  for _, set in ipairs({ ':ready', ':since', ':later', ':wish' }) do ick_remove(S .. set, members, 1) end
  return channel_size(S)
end

redis.register_function{
  function_name = 'hw_channel_forget',
  callback = function(keys, members)
    if not load_shard(keys[1]).closed then return channel_size(keys[1]) end
    return on_shard(keys[1], forget_members, members)
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_channel_drop: delete a shard with all its members; a mark is kept for MARK_MS.
  KEYS   1 the shard
  Reply  how many members were in it
]]
redis.register_function{
  function_name = 'hw_channel_drop',
  callback = function(keys)
    local S = keys[1]
    local size = channel_size(S) + redis.call('ZCARD', S .. ':held')
    -- It is closed first, and in one step: the server frees large values in the background.
    redis.call('HSET', S, 'closed', 1)
    redis.call('PEXPIRE', S, MARK_MS)
    redis.call('UNLINK', S .. ':ready', S .. ':since', S .. ':later', S .. ':wish', S .. ':held', S .. ':made')
    redis.call('HDEL', S, 'token', 'holder', 'until', 'generation', 'turn', 'done', 'opened', 'added', 'entered')
    return size
  end,
  flags = { 'allow-oom' },
}

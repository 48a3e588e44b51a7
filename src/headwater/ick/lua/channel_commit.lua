--[[
  hw_channel_commit: mark reserved members as clean; those of another generation stay reserved.
  KEYS   1 the shard
  ARGV   1 token of the lease   2 how long it lasts from now, in ms
         3.. member, generation, member, generation, ...
  Reply  how many were reserved under that generation until now
         error HW_LEASE <token> <holder> when another token is in force; nothing is changed then
]]
-- Finds the reserved members whose generation is the one named; returns score, member, score, member, ... of
-- those, and the members.
local function find_reserved(S, args, first)
  local rows, found, made = {}, {}, made_of(S, args, first)
  local meant = {}
  for i, generation in ipairs(made) do
    if generation == args[first + 2 * i - 1] then meant[#meant + 1] = args[first + 2 * i - 2] end
  end
  for i = 1, #meant, ICK_ROWS do
    local some = { unpack(meant, i, math.min(i + ICK_ROWS - 1, #meant)) }
    for j, score in ipairs(redis.call('ZMSCORE', S .. ':held', unpack(some))) do
      if score then
        rows[#rows + 1], rows[#rows + 2] = score, some[j]
        found[#found + 1] = some[j]
      end
    end
  end
  return rows, found
end

local function drop_reserved(S, members)
  note_moved(members, 1, 1)
  for i = 1, #members, ICK_ROWS do
    local last = math.min(i + ICK_ROWS - 1, #members)
    redis.call('ZREM', S .. ':held', unpack(members, i, last))
    redis.call('HDEL', S .. ':made', unpack(members, i, last))
  end
end

-- A holder that commits or releases is alive: its lease continues for the remaining members, and ends with
-- the last.
local function renew_lease(S, token, till)
  redis.call('HSET', S, 'until', till)
  end_lease_if_idle(S, token)
end

local function commit_members(S, args, token, lease_ms)
  local _, members = find_reserved(S, args, 3)
  drop_reserved(S, members)
  renew_lease(S, token, server_ms() + lease_ms)
  return #members
end

redis.register_function{
  function_name = 'hw_channel_commit',
  callback = function(keys, args)
    local token, lease_ms = tonumber(args[1]), tonumber(args[2])
    local shard, fault = check_token(keys[1], token)
    if not shard then return fault or 0 end
    return on_shard(keys[1], commit_members, args, token, lease_ms)
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_channel_release: return reserved members unprocessed, to be reserved again.
  KEYS   1 the shard
  ARGV   1 token of the lease   2 how long it lasts from now, in ms
         3 ms after which they may be reserved   4.. member, generation, ...
  Reply  as hw_channel_commit
]]
local function release_members(S, args, token, lease_ms, delay_ms)
  local now = server_ms()
  local rows, members = find_reserved(S, args, 4)
  if #rows > 0 and delay_ms > 0 then
    add_rows(S, rows, 1, now + delay_ms)
  elseif #rows > 0 then
    add_rows(S, rows, 1, nil, now)
  end
  drop_reserved(S, members)
  renew_lease(S, token, now + lease_ms)
  return #members
end

redis.register_function{
  function_name = 'hw_channel_release',
  callback = function(keys, args)
    local token, lease_ms, delay_ms = tonumber(args[1]), tonumber(args[2]), tonumber(args[3])
    local shard, fault = check_token(keys[1], token)
    if not shard then return fault or 0 end
    return on_shard(keys[1], release_members, args, token, lease_ms, delay_ms)
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_channel_renew: extend the lease of its holder.
  KEYS   1 the shard
  ARGV   1 token of the lease   2 how long it lasts from now, in ms
  Reply  the ms until which the lease lasts, or 0 when nothing is reserved any more
         error HW_LEASE <token> <holder>
]]
redis.register_function{
  function_name = 'hw_channel_renew',
  callback = function(keys, args)
    local S, token, lease_ms = keys[1], tonumber(args[1]), tonumber(args[2])
    local shard, fault = check_token(S, token)
    if fault then return fault end
    if not shard or shard.holder == '' then return 0 end
    local till = server_ms() + lease_ms
    redis.call('HSET', S, 'until', till)
    return till
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_channel_commit: reserved members are clean; those of another generation stay reserved.
  KEYS   1 the shard
  ARGV   1 token of the lease   2 how long it lasts from now, in ms
         3.. member, generation, member, generation, ...
  Reply  how many were reserved under that generation until now
         error HW_LEASE <token> <holder> when another token is in force; nothing is changed then
]]
-- Takes members out of what is reserved, where the generation is the one named; returns score, member,
-- score, member, ... of those.
local function take_reserved(S, args, first)
  local rows, gone, made = {}, {}, made_of(S, args, first)
  for i, generation in ipairs(made) do
    if generation == args[first + 2 * i - 1] then gone[#gone + 1] = args[first + 2 * i - 2] end
  end
  for i = 1, #gone, ICK_ROWS do
    local some = { unpack(gone, i, math.min(i + ICK_ROWS - 1, #gone)) }
    for j, score in ipairs(redis.call('ZMSCORE', S .. ':held', unpack(some))) do
      rows[#rows + 1], rows[#rows + 2] = score, some[j]
    end
    redis.call('ZREM', S .. ':held', unpack(some))
    redis.call('HDEL', S .. ':made', unpack(some))
  end
  return rows
end

-- Whoever commits or releases is alive: the lease goes on for what is left, and ends with the last.
local function renew_lease(S, token, till)
  redis.call('HSET', S, 'until', till)
  end_lease_if_idle(S, token)
end

redis.register_function{
  function_name = 'hw_channel_commit',
  callback = function(keys, args)
    local S, token, lease_ms = keys[1], tonumber(args[1]), tonumber(args[2])
    local shard, fault = check_token(S, token)
    if not shard then return fault or 0 end
    local rows = take_reserved(S, args, 3)
    renew_lease(S, token, server_ms() + lease_ms)
    return #rows / 2
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_channel_release: reserved members are given back undone, to be handed out again.
  KEYS   1 the shard
  ARGV   1 token of the lease   2 how long it lasts from now, in ms
         3 ms after which they may be handed out   4.. member, generation, ...
  Reply  as hw_channel_commit
]]
redis.register_function{
  function_name = 'hw_channel_release',
  callback = function(keys, args)
    local S, token, lease_ms, delay_ms = keys[1], tonumber(args[1]), tonumber(args[2]), tonumber(args[3])
    local now = server_ms()
    local shard, fault = check_token(S, token)
    if not shard then return fault or 0 end
    local rows = take_reserved(S, args, 4)
    if #rows > 0 then
      if delay_ms > 0 then
        add_rows(S, rows, 1, now + delay_ms)
      else
        add_rows(S, rows, 1, nil, now)
      end
    end
    renew_lease(S, token, now + lease_ms)
    return #rows / 2
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_channel_renew: the holder is alive and needs more time.
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

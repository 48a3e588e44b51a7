--[[
  The end of a group: every key of it.
]]
local function remove_group(K, name)
  local G = group_key(K, name)
  for _, waiter in ipairs(redis.call('ZRANGE', G .. ':boxes', 0, -1)) do
    redis.call('UNLINK', G .. ':box:' .. waiter)
  end
  for _, part in ipairs({ 'pending', 'due', 'expired', 'waiters', 'boxes', 'members', 'dead' }) do
    redis.call('UNLINK', G .. ':' .. part)
  end
  redis.call('SREM', K .. ':waiting', name)
  redis.call('ZREM', K .. ':groups', name)
  return redis.call('UNLINK', G)
end

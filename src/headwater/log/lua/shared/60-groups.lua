--[[
  The end of a group: every key of it.
]]
local function remove_group(K, name)
  local G = group_key(K, name)
  open_group(G)
  drop_boxes(G)
  for _, part in ipairs({ 'pending', 'due', 'expired', 'waiters', 'served', 'members', 'dead' }) do
    redis.call('UNLINK', G .. ':' .. part)
  end
  forget_waiting(K, load_stream(K), name)
  redis.call('ZREM', K .. ':groups', name)
  return redis.call('UNLINK', G)
end

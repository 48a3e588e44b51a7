--[[
  hw_channel_add: mark members as dirty. A member that is dirty already keeps the lower score and the
  earlier time. A member that is reserved becomes dirty again as well. A repeat changes nothing.
  KEYS   1 the shard
  ARGV   1 ms since 1970 before which they must not be reserved, or ''
         2.. score, member, score, member, ...
  Reply  { members that were not dirty before, members whose score fell }
         error HW_CLOSED when the layout has changed: ask for it again; HW_UNOPENED when nobody has opened
         the shard: ask as well, and open it if the layout has it
  Cost   O(members · log size)
]]
-- The counters affect nothing else: an add succeeds even where it cannot be counted.
local function add_counted(S, args, not_before, now)
  local reply = add_rows(S, args, 2, not_before, now)
  redis.pcall('HINCRBY', S, 'added', (#args - 1) / 2)
  if reply[1] > 0 then redis.pcall('HINCRBY', S, 'entered', reply[1]) end
  return reply
end

redis.register_function('hw_channel_add', function(keys, args)
  local not_before, now = tonumber(args[1]), server_ms()
  local refused = refusal_of(keys[1])
  if refused then return refused end
  if not_before and not_before <= now then not_before = nil end
  return on_shard(keys[1], add_counted, args, not_before, now)
end)

--[[
  hw_channel_put: add members of a shard of the old layout, each with its own times.
  KEYS   1 the shard
  ARGV   1.. member, score, ms before which it must not be reserved or 0, ms since which it is
         dirty, member, score, ...
  Reply  how many were not here
         error HW_CLOSED, HW_UNOPENED
]]
local function put_rows(S, args)
  local before = channel_size(S)
  for i = 1, #args, 4 do
    local member, score, not_before, since = args[i], args[i + 1], tonumber(args[i + 2]), args[i + 3]
    local row = { score, member }
    if not_before > 0 then add_later(S, row, not_before) else add_ready(S, row, since) end
  end
  return channel_size(S) - before
end

redis.register_function{
  function_name = 'hw_channel_put',
  callback = function(keys, args)
    return refusal_of(keys[1]) or on_shard(keys[1], put_rows, args)
  end,
  flags = { 'allow-oom' },
}

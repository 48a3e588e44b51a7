--[[
  hw_channel_open: get a channel's layout; the first client to open the channel decides it.
  KEYS   1 the channel
  ARGV   1 number of shards of a new channel
  Reply  { epoch, shards, old epoch or 0, old shards, phase }
]]
function looks.channel(M)
  local f = redis.call('HMGET', M, 'epoch', 'shards', 'old_epoch', 'old_shards', 'phase', 'format')
  check_format(f[6])
  if not f[1] then return nil end
  return { tonumber(f[1]), tonumber(f[2]), tonumber(f[3] or 0), tonumber(f[4] or 0), f[5] or '' }
end

redis.register_function('hw_channel_open', function(keys, args)
  local M, shards = keys[1], args[1]
  local view = looks.channel(M)
  if view then return view end
  redis.call('HSET', M, 'epoch', next_by_clock(0), 'shards', shards)
  return looks.channel(M)
end)

--[[
  hw_channel_view: get a channel's layout, without creating one.
  KEYS   1 the channel
  Reply  as hw_channel_open; nothing when there is no channel
]]
redis.register_function{
  function_name = 'hw_channel_view',
  callback = function(keys) return looks.channel(keys[1]) end,
  flags = { 'no-writes' },
}

--[[
  hw_channel_begin: begin to change the number of shards, or to delete the channel.
  Does nothing while a change is in progress, or when the epoch is not the one that was seen.
  KEYS   1 the channel
  ARGV   1 the epoch that was seen   2 the new number of shards; 0 deletes
  Reply  as hw_channel_open; nothing when there is no channel
]]
redis.register_function{
  function_name = 'hw_channel_begin',
  callback = function(keys, args)
    local M, epoch, shards = keys[1], tonumber(args[1]), tonumber(args[2])
    local view = looks.channel(M)
    if not view then return nil end
    if view[1] ~= epoch or view[2] == shards then return view end
    if shards == 0 then
      redis.call('HSET', M, 'phase', 'deleting')
    elseif view[5] == '' then
      redis.call('HSET', M, 'old_epoch', view[1], 'old_shards', view[2], 'phase', 'closing',
        'epoch', next_by_clock(view[1]), 'shards', shards)
    end
    return looks.channel(M)
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_channel_advance: move a change to its next phase; nothing happens when another client did so first.
  'moving': every shard of the old layout is closed and has no lease. '': the old shards are empty.
  'gone': all shards of a deleted channel are dropped.
  KEYS   1 the channel
  ARGV   1 the epoch that was seen   2 the phase that was seen   3 'moving', '' or 'gone'
  Reply  1 when the phase was still the one that was seen
]]
redis.register_function{
  function_name = 'hw_channel_advance',
  callback = function(keys, args)
    local M, epoch, phase, next_phase = keys[1], tonumber(args[1]), args[2], args[3]
    local view = looks.channel(M)
    if not view or view[1] ~= epoch or view[5] ~= phase then return 0 end
    if next_phase == 'gone' then
      redis.call('UNLINK', M)
    elseif next_phase == '' then
      redis.call('HDEL', M, 'old_epoch', 'old_shards', 'phase')
    else
      redis.call('HSET', M, 'phase', next_phase)
    end
    return 1
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_group_pause: pause or resume the delivery of messages.
  While the group is paused, members may acknowledge, extend and return the messages that they have, and
  messages that expire are given up.
  KEYS   1 the stream
  ARGV   1 group   2 '1' to pause, '0' to resume
  Reply  1 when that changed anything
         error HW_NO_GROUP

  G field max_pending: -1 - n while the group is paused, n being its limit; no call reads another field
]]
redis.register_function{
  function_name = 'hw_group_pause',
  callback = function(keys, args)
    local K, name, paused = keys[1], args[1], args[2] == '1'
    local G, stream = group_key(K, name), load_stream(K)
    local group = open_group(G, stream)
    if not group then return no_group() end
    if paused == (group.max_pending < 0) then return 0 end
    change(group, 'max_pending', -1 - group.max_pending)
    save_group(G, group)
    if not paused then serve(K, name, stream) end
    return 1
  end,
  flags = { 'allow-oom' },
}

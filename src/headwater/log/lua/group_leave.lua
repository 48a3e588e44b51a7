--[[
  hw_group_leave: remove a blocked member that is gone from the line.
  Unseen messages in its box are returned, as if they had never been delivered, and go to the next in line.

  KEYS   1 the stream
  ARGV   1 group   2 waiter
  Reply  1 when it waited, or had messages in its box
]]
redis.register_function{
  function_name = 'hw_group_leave',
  callback = function(keys, args)
    local K, name, waiter = keys[1], args[1], args[2]
    local G, stream, now = group_key(K, name), load_stream(K), server_ms()
    local group = open_group(G, stream)
    if not group then return 0 end
    local waited = redis.call('HEXISTS', G, 'w:' .. waiter)
    local boxed = take_back(K, name, group, waiter, now)
    serve(K, name, stream, now)
    return math.max(boxed, waited)
  end,
  flags = { 'allow-oom' },
}

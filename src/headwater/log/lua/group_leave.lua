--[[
  hw_group_leave: take a member out of the line of those that are blocked, because it is gone.
  What lies unseen in its box goes back, as if it had never been handed out, and to the next in line.

  KEYS   1 the stream
  ARGV   1 group   2 waiter
  Reply  1 when it waited, or had something in its box
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

--[[
  Hot and cold nodes. A writer packs a node so that it is written and read fast: it is hot. A housekeeper packs
  it again, as small as possible: it is cold. The hash K keeps `cold`: all nodes up to this offset are cold.
  Sealing creates cold nodes, and moves the mark when it reaches it.
]]

--[[
  hw_stream_hot: get the oldest hot nodes.
  KEYS   1 the stream
  ARGV   1 how many of the newest messages may stay hot   2 how many nodes at most
  Reply  { first, created, mark, { base, last, count, bytes, time, version, ... } }
]]
redis.register_function{
  function_name = 'hw_stream_hot',
  callback = function(keys, args)
    local K, leave, most = keys[1], tonumber(args[1]), args[2]
    local stream, cold = load_stream(K, 'cold')
    cold = cold_end(stream, cold)
    local found = redis.call('ZRANGE', K .. ':index', '(' .. digits(cold),
      digits(math.max(math.min(stream.last - leave, stream.sealed), 0)), 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES')
    return { stream.first, stream.created, cold, node_facts(found) }
  end,
  flags = { 'no-writes' },
}

--[[
  hw_stream_cooled: record that all nodes up to an offset are cold.
  KEYS   1 the stream
  ARGV   1 `created` as read   2 the mark as read   3 the offset
  Reply  1, or 0 when another client was faster
]]
redis.register_function{
  function_name = 'hw_stream_cooled',
  callback = function(keys, args)
    local K, created, mark, offset = keys[1], args[1], tonumber(args[2]), args[3]
    local stream, cold = load_stream(K, 'cold')
    if stream.created ~= created or cold_end(stream, cold) ~= mark then return 0 end
    redis.call('HSET', K, 'cold', offset)
    return 1
  end,
  flags = { 'allow-oom' },
}

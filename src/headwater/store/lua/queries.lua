--[[
  hw_query_note: register a streaming query of Spark.
  KEYS   1 the record of queries
  ARGV   1 the field: which query, and which part of its facts   2 the facts, in JSON
  Reply  1
]]
redis.register_function('hw_query_note', function(keys, args)
  local queries, field, facts = keys[1], args[1], args[2]
  redis.call('HSET', queries, field, digits(server_ms()) .. ' ' .. facts)
  return 1
end)

--[[
  hw_query_list: list the facts of all queries.
  KEYS   1 the record of queries
  Reply  { the server's time in ms, field, "<ms when it was noted> <facts>", ... }
]]
redis.register_function{
  function_name = 'hw_query_list',
  callback = function(keys)
    local found = redis.call('HGETALL', keys[1])
    table.insert(found, 1, server_ms())
    return found
  end,
  flags = { 'no-writes' },
}

--[[
  hw_query_forget: delete facts of queries.
  KEYS   1 the record of queries
  ARGV   1.. fields
  Reply  how many there were
]]
redis.register_function{
  function_name = 'hw_query_forget',
  callback = function(keys, fields)
    local queries, gone = keys[1], 0
    for _, field in ipairs(fields) do gone = gone + redis.call('HDEL', queries, field) end
    return gone
  end,
  flags = { 'allow-oom' },
}

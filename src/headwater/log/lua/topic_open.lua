--[[
  hw_topic_open: get the number of partitions of a topic; the first client to ask decides it.
  KEYS   1 the topic
  ARGV   1 partitions wanted, 0 for any number   2 partitions of a new topic when any number is wanted
  Reply  the topic's partitions
]]
local function topic_partitions(T)
  local f = redis.call('HMGET', T, 'partitions', 'format')
  check_format(f[2])
  return tonumber(f[1] or nil)
end

redis.register_function('hw_topic_open', function(keys, args)
  local T, partitions, default = keys[1], tonumber(args[1]), tonumber(args[2])
  local has = topic_partitions(T)
  if has then return has end
  if partitions == 0 then partitions = default end
  redis.call('HSET', T, 'partitions', partitions)
  return partitions
end)

--[[
  hw_topic_partitions: get the number of partitions of a topic, without creating it.
  KEYS   1 the topic
  Reply  the topic's partitions, 0 when there is no such topic
]]
redis.register_function{
  function_name = 'hw_topic_partitions',
  callback = function(keys)
    return topic_partitions(keys[1]) or 0
  end,
  flags = { 'no-writes' },
}

--[[
  hw_topic_delete: forget a topic; its streams are deleted separately.
  KEYS   1 the topic
  Reply  1 when it existed
]]
redis.register_function{
  function_name = 'hw_topic_delete',
  callback = function(keys) return redis.call('UNLINK', keys[1]) end,
  flags = { 'allow-oom' },
}

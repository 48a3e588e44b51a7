--[[
  hw_store_looks: where several streams with their groups, and several queues stand, in one call; not
  for a cluster, where they lie apart.
  KEYS   1.. the streams, then the queues
  ARGV   1 how many of them are streams   2 groups at most, of all of them together
  Reply  { server's ms,
           { for each stream { what hw_stream_info replies, group, what hw_group_info replies of it, ... } },
           { for each queue what hw_queue_stats replies } };
         groups beyond the limit are left out, and their names are in the facts of their stream
]]
redis.register_function{
  function_name = 'hw_store_looks',
  callback = function(keys, args)
    local streams, left = tonumber(args[1]), tonumber(args[2])
    local reply = { server_ms(), {}, {} }
    for i, K in ipairs(keys) do
      if i > streams then
        reply[3][i - streams] = looks.queue(K)
      else
        local found = { looks.stream(K) }
        for _, name in ipairs(left > 0 and redis.call('ZRANGE', K .. ':groups', 0, left - 1) or {}) do
          local group = looks.group(K, name)
          if group then found[#found + 1], found[#found + 2], left = name, group, left - 1 end
        end
        reply[2][i] = found
      end
    end
    return reply
  end,
  flags = { 'no-writes' },
}

--[[
  hw_store_looks: get the state of several streams with their groups, and of several queues, in one call;
  not for a cluster, where they are in different slots.
  KEYS   1.. the streams, then the queues
  ARGV   1 how many of them are streams   2 groups at most, of all of them together
  Reply  { server's ms,
           { for each stream { the reply of hw_stream_info, group, the reply of hw_group_info for it, ... } },
           { for each queue the reply of hw_queue_stats } };
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

--[[
  hw_store_channels: get the layout of several channels, and the state of several shards, in one call; not for
  a cluster, where they are in different slots.
  KEYS   1.. the channels, then the shards
  ARGV   1 how many of them are channels
  Reply  { for each channel the reply of hw_channel_view, for each shard the reply of hw_channel_shard }
]]
redis.register_function{
  function_name = 'hw_store_channels',
  callback = function(keys, args)
    local channels, reply = tonumber(args[1]), {}
    for i, key in ipairs(keys) do
      -- A reply ends before a nil, so that false says that there is no channel.
      if i <= channels then reply[i] = looks.channel(key) or false else reply[i] = looks.shard(key) end
    end
    return reply
  end,
  flags = { 'no-writes' },
}

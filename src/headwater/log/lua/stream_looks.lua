--[[
  hw_stream_looks: where several streams and their groups stand, in one call; not for a cluster, where
  streams lie apart.
  KEYS   1.. the streams
  ARGV   1 groups at most, of all of them together
  Reply  { server's ms, then for each stream { what hw_stream_info replies, group, what hw_group_info
         replies of it, ... } }; groups beyond the limit are left out, and their names are in the former
]]
redis.register_function{
  function_name = 'hw_stream_looks',
  callback = function(keys, args)
    local left, reply = tonumber(args[1]), { server_ms() }
    for _, K in ipairs(keys) do
      local found = { looks.stream(K) }
      for _, name in ipairs(left > 0 and redis.call('ZRANGE', K .. ':groups', 0, left - 1) or {}) do
        local group = looks.group(K, name)
        if group then found[#found + 1], found[#found + 2], left = name, group, left - 1 end
      end
      reply[#reply + 1] = found
    end
    return reply
  end,
  flags = { 'no-writes' },
}

--[[
  hw_stream_stage: stage packed batches under a name, to be published later.
  They are not visible until then, and the stream does not change. A repeat changes nothing. The server
  deletes a staging that was neither added to nor published for the given time.
  KEYS   1 the stream
  ARGV   1 name of the staging   2 ms to keep it from now on
         3 place: how many nodes the caller has staged before
         4.. count, first time or '', newest time or '', '1' when fit to be a node, blob, ...
  Reply  how many nodes are staged, counting up to these
         error HW_UNSTAGED <nodes> when fewer are there than the caller has staged before
         error HW_BEGUN when they are being published
]]
redis.register_function('hw_stream_stage', function(keys, args)
  local K, name, keep_ms, place = keys[1], args[1], args[2], tonumber(args[3])
  local S = staged_key(K, name)
  local facts = redis.call('HMGET', S, 'n', 'begun', 'format')
  check_format(facts[3])
  local n = tonumber(facts[1] or 0)
  if facts[2] then return redis.error_reply('HW_BEGUN') end
  if place > n then return redis.error_reply('HW_UNSTAGED ' .. digits(n)) end
  stagings.list(K, name, keep_ms)
  -- A staging must always have an expiry, whatever fails after this.
  if n == 0 then redis.call('HSET', S, 'n', 0) end
  redis.call('PEXPIRE', S, keep_ms)
  local at, bytes = place, 0
  for i = 4, #args, 5 do
    if at >= n then
      local words = table.concat({ args[i], args[i + 1], args[i + 2], args[i + 3] }, ':')
      redis.call('HSET', S, digits(at), args[i + 4], 'f' .. digits(at), words)
      bytes = bytes + #args[i + 4]
    end
    at = at + 1
  end
  if at > n then
    redis.call('HSET', S, 'n', digits(at))
    redis.call('HINCRBY', S, 'bytes', digits(bytes))
  end
  return at
end)

--[[
  hw_stream_unstage: drop stagings, unless they are being published.
  KEYS   1 the stream
  ARGV   1.. names of stagings
  Reply  how many of them were there
]]
redis.register_function{
  function_name = 'hw_stream_unstage',
  callback = function(keys, names)
    local K, dropped = keys[1], 0
    for _, name in ipairs(names) do dropped = dropped + unstage(K, name) end
    return dropped
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_stream_staged: get how many bytes are staged and not published.
  KEYS   1 the stream
  ARGV   1 prefix of the names of the stagings, '' for all
  Reply  bytes of their nodes, of the 1000 stagings that last longest
]]
redis.register_function{
  function_name = 'hw_stream_staged',
  callback = function(keys, args)
    local K, prefix = keys[1], args[1]
    return stagings.bytes(K, prefix)
  end,
  flags = { 'no-writes' },
}

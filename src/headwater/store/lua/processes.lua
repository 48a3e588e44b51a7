--[[
  hw_process_note: register a process that uses the store, with facts about it, or remove it.
  KEYS   1 the record of processes
  ARGV   1 the process   2 the facts, in JSON; '' to remove it   3 ms of silence after which others are forgotten
         4 ms of silence after which others count as gone   5 how many of those are kept
  Reply  1
]]
redis.register_function{
  function_name = 'hw_process_note',
  callback = function(keys, args)
    local P, process, facts, forgotten_ms = keys[1], args[1], args[2], tonumber(args[3])
    local silent_ms, most, now = tonumber(args[4]), tonumber(args[5]), server_ms()
    local gone = redis.call('ZRANGE', P .. ':seen', '-inf', digits(now - forgotten_ms), 'BYSCORE')
    local over = redis.call('ZCOUNT', P .. ':seen', '-inf', digits(now - silent_ms)) - most
    if over > #gone then gone = redis.call('ZRANGE', P .. ':seen', 0, over - 1) end
    if facts == '' then gone[#gone + 1] = process end
    for _, one in ipairs(gone) do
      redis.call('HDEL', P, one)
      redis.call('ZREM', P .. ':seen', one)
    end
    if facts ~= '' then
      redis.call('HSET', P, process, facts)
      redis.call('ZADD', P .. ':seen', digits(now), process)
    end
    return 1
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_process_list: list the processes that were seen.
  KEYS   1 the record of processes
  Reply  { server's ms, process, ms when it was seen, its facts, ... }
]]
redis.register_function{
  function_name = 'hw_process_list',
  callback = function(keys)
    local P, reply = keys[1], { server_ms() }
    local seen = redis.call('ZRANGE', P .. ':seen', 0, -1, 'WITHSCORES')
    for i = 1, #seen, 2 do
      local facts = redis.call('HGET', P, seen[i])
      if facts then
        reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = seen[i], tonumber(seen[i + 1]), facts
      end
    end
    return reply
  end,
  flags = { 'no-writes' },
}

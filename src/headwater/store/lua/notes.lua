--[[
  hw_note_keep: store small notes beside the data: when an alarm began, how the last check ended.
  A note that exists stays as it is unless it is to be replaced, so that of several processes that notice
  the same thing the first one counts.
  KEYS   1 the record
  ARGV   1 notes at most; new ones beyond that are left out   2 1 to replace, 0 to keep existing ones
         3 how many are stored, then field, note of each, then the fields that are deleted
  Reply  1
]]
redis.register_function{
  function_name = 'hw_note_keep',
  callback = function(keys, args)
    local K, most, replace, count = keys[1], tonumber(args[1]), args[2] == '1', tonumber(args[3])
    for i = 4 + 2 * count, #args do redis.call('HDEL', K, args[i]) end
    for i = 4, 2 + 2 * count, 2 do
      local known = redis.call('HEXISTS', K, args[i]) == 1
      if known and replace or not known and redis.call('HLEN', K) < most then
        redis.call('HSET', K, args[i], digits(server_ms()) .. ' ' .. args[i + 1])
      end
    end
    return 1
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_note_list: list all notes.
  KEYS   1 the record
  Reply  { field, "<server's ms when it was noted> <note>", ... }
]]
redis.register_function{
  function_name = 'hw_note_list',
  callback = function(keys) return redis.call('HGETALL', keys[1]) end,
  flags = { 'no-writes' },
}

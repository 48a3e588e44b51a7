--[[
  hw_group_expire: give up what has expired, though nobody reads.
  A read gives up what it meets; in a group without readers somebody else must look.
  With dead letters the messages are left to hw_group_bury, without they are dropped here.

  KEYS   1 the stream
  ARGV   1 group   2 place in the order of deadlines to go on from, 0 to begin
  Reply  { messages dropped, place to go on from or -1 at the end }
         error HW_NO_GROUP
  Cost   O(EXPIRE_STEPS · log pending ranges) in one call
]]
redis.register_function{
  function_name = 'hw_group_expire',
  callback = function(keys, args)
    local K, name, place = keys[1], args[1], tonumber(args[2])
    local G, now = group_key(K, name), server_ms()
    local group = load_group(G)
    if not group then return no_group() end
    book_group(G, group)
    local before, left = group.pending, EXPIRE_STEPS
    -- By rank, not by score: ranges that wait to be tried again stay in front of those that expire.
    local due = redis.call('ZRANGE', G .. ':due', place, place + EXPIRE_STEPS - 1, 'WITHSCORES')
    for i = 1, #due, 2 do
      if tonumber(due[i + 1]) > now then break end
      local range = pending_at(G, due[i])
      if range.expire ~= NEVER and range.expire <= now then
        expire_range(G, range, group)
      else
        place = place + 1
      end
      left = left - 1
    end
    if group.pending < before and redis.call('EXISTS', G .. ':waiters') == 1 then
      serve(K, name, load_stream(K), now)
    end
    return { before - group.pending, left == 0 and place or -1 }
  end,
  flags = { 'allow-oom' },
}

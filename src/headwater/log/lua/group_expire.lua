--[[
  hw_group_expire: give up expired messages of a group that nobody reads.
  A read gives up the expired messages that it finds; in a group without readers the housekeeper calls this.
  With dead letters the messages are left to hw_group_bury, otherwise they are dropped here.

  KEYS   1 the stream
  ARGV   1 group   2 place in the order of deadlines to continue from, 0 to begin
  Reply  { messages dropped, place to continue from or -1 at the end }
         error HW_NO_GROUP
  Cost   O(STEP_RANGES · log pending ranges) in one call
]]
redis.register_function{
  function_name = 'hw_group_expire',
  callback = function(keys, args)
    local K, name, place = keys[1], args[1], tonumber(args[2])
    local G, stream, now = group_key(K, name), load_stream(K), server_ms()
    local group = open_group(G, stream)
    if not group then return no_group() end
    book_group(G, group)
    local old, rest, waiting, strays, looked, dropped = {}, {}, {}, {}, 0, 0
    local most = lanes.budget(G, group)
    -- By rank, not by score: ranges that will be retried stay before those that expire.
    local due = redis.call('ZRANGE', G .. ':due', place, place + STEP_RANGES - 1, 'WITHSCORES')
    for i = 1, #due, 2 do
      if tonumber(due[i + 1]) > now or most and dropped >= most then break end
      looked = looked + 1
      local range = pending_at(G, due[i])
      if not range then
        strays[#strays + 1] = due[i]
      elseif range.expire == NEVER or range.expire > now then
        place = place + 1
      elseif group.dead_letters ~= '' then
        waiting[#waiting + 1] = due[i]
      else
        old[#old + 1] = range
        local last = math.min(range.last, range.first + (most or math.huge) - 1)
        if last < range.last then
          range.due = tonumber(due[i + 1])
          rest[#rest + 1] = part_of(range, last + 1, range.last)
        end
        dropped = dropped + last - range.first + 1
      end
    end
    if old[1] then
      load_counts(G, group)
      replace_ranges(G, group, old, rest)
      change(group, 'expired', group.expired + dropped)
    end
    save_group(G, group)
    if waiting[1] then mark_expired(G, waiting) end
    if strays[1] then redis.call('ZREM', G .. ':due', unpack(strays)) end
    if dropped > 0 then serve(K, name, stream, now) end
    return { dropped, (looked == STEP_RANGES or most and dropped >= most) and place or -1 }
  end,
  flags = { 'allow-oom' },
}

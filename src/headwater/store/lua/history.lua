--[[
  hw_history_write: write points of the history that the console shows, under a lease.
  The place of a point in its ring follows from its time, so writing it again changes nothing.
  KEYS   1 the history
  ARGV   1 who writes   2 ms for which no other process may write, from now on; 0 to end the lease
         3.. for each point: its ring, the place of its first byte there, the point
  Reply  1, or 0 when another process has the lease; nothing was written then
]]
redis.register_function('hw_history_write', function(keys, args)
  local H, writer, hold_ms, now = keys[1], args[1], tonumber(args[2]), server_ms()
  local pen = redis.call('HMGET', H, 'writer', 'until')
  if pen[1] and pen[1] ~= writer and tonumber(pen[2] or 0) > now then return 0 end
  redis.call('HSET', H, 'writer', writer, 'until', digits(now + hold_ms))
  for i = 3, #args, 3 do redis.call('SETRANGE', H .. ':' .. args[i], args[i + 1], args[i + 2]) end
  return 1
end)

--[[
  hw_history_keep: add series to the history, and remove others. The space of a ring is allocated when its
  series is added: a string that grows would take twice as much.
  KEYS   1 the history
  ARGV   1 how many are added   2.. these, each followed by the ms when it was last busy
         then series that are removed, with their rings
  Reply  1
]]
-- Seconds between the points of a ring, and its bytes.
local RINGS = { { '1', 300 * 28 }, { '10', 360 * 28 }, { '60', 1440 * 28 } }

local function ring_of(H, seconds, series) return table.concat({ H, seconds, series }, ':') end

redis.register_function{
  function_name = 'hw_history_keep',
  callback = function(keys, args)
    local H, added = keys[1], tonumber(args[1])
    for i = 2, 2 * added, 2 do
      redis.call('HSET', H .. ':series', args[i], args[i + 1])
      for _, ring in ipairs(RINGS) do
        local key = ring_of(H, ring[1], args[i])
        if redis.call('EXISTS', key) == 0 then redis.call('SETRANGE', key, ring[2] - 1, '\0') end
      end
    end
    for i = 2 * added + 2, #args do
      redis.call('HDEL', H .. ':series', args[i])
      for _, ring in ipairs(RINGS) do redis.call('UNLINK', ring_of(H, ring[1], args[i])) end
    end
    return 1
  end,
}

--[[
  hw_history_series: list the series of the history, its writer, and the space that it takes.
  KEYS   1 the history
  Reply  { server's ms, who has the lease or '', until when (ms) or 0, bytes of all rings in memory,
         series, ms when it was last busy, ... }
]]
redis.register_function{
  function_name = 'hw_history_series',
  callback = function(keys)
    local H, bytes = keys[1], 0
    local pen, series = redis.call('HMGET', H, 'writer', 'until'), redis.call('HGETALL', H .. ':series')
    for i = 1, #series, 2 do
      for _, ring in ipairs(RINGS) do
        bytes = bytes + (redis.call('MEMORY', 'USAGE', ring_of(H, ring[1], series[i])) or 0)
      end
    end
    for i, value in ipairs({ server_ms(), pen[1] or '', tonumber(pen[2] or 0), bytes }) do
      table.insert(series, i, value)
    end
    return series
  end,
  flags = { 'no-writes' },
}

--[[
  hw_history_read: read rings of the history.
  KEYS   1 the history
  ARGV   1.. rings
  Reply  { server's ms, the bytes of each, '' where there is none }
]]
redis.register_function{
  function_name = 'hw_history_read',
  callback = function(keys, rings)
    local reply = { server_ms() }
    for i, ring in ipairs(rings) do reply[i + 1] = redis.call('GET', keys[1] .. ':' .. ring) or '' end
    return reply
  end,
  flags = { 'no-writes' },
}

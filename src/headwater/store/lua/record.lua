--[[
  hw_store_note: register a client. Raises the format in use when every recently seen client understands a
  newer one; a store without a record begins with the format of its first client.
  KEYS   1 the record
  ARGV   1 release of the client   2 version of its contract   3 newest format that it understands
         4 ms for which a client counts after it was seen
  Reply  the format in use
         error HW_FORMAT <format> when it is newer than the client; the client is not registered then
]]
redis.register_function{
  function_name = 'hw_store_note',
  callback = function(keys, args)
    local R, release, version = keys[1], args[1], args[2]
    local format, counts_ms = tonumber(args[3]), tonumber(args[4])
    local in_use = tonumber(redis.call('HGET', R, 'format') or format)
    if in_use > format then return redis.error_reply('HW_FORMAT ' .. digits(in_use)) end
    local now, lowest = server_ms(), format
    each_seen(R, function(kind, theirs, seen)
      if seen < now - counts_ms then
        redis.call('HDEL', R, kind)
      else
        lowest = math.min(lowest, theirs)
      end
    end)
    in_use = math.max(in_use, lowest)
    local kind = table.concat({ release, version, digits(format) }, ':')
    redis.call('HSET', R, 'format', digits(in_use), kind, digits(now))
    return in_use
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_store_raise: use a newer format, unless clients that do not understand it were seen recently.
  A format that is in use already, or an older one, changes nothing.
  KEYS   1 the record
  ARGV   1 the format   2 ms for which a client counts after it was seen; 0 to ignore clients
  Reply  the kinds of client that prevent it, as "release:version:format"; none when it was done
]]
redis.register_function{
  function_name = 'hw_store_raise',
  callback = function(keys, args)
    local R, format, counts_ms, older = keys[1], tonumber(args[1]), tonumber(args[2]), {}
    local since = server_ms() - counts_ms
    each_seen(R, function(kind, theirs, seen)
      if counts_ms > 0 and theirs < format and seen > since then older[#older + 1] = kind end
    end)
    if #older > 0 then return older end
    if tonumber(redis.call('HGET', R, 'format') or 0) < format then
      redis.call('HSET', R, 'format', digits(format))
    end
    return older
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_store_record: get the record of a store.
  KEYS   1 the record
  Reply  { the server's time in ms, the format in use or 0, kind of client, ms when it was seen last,
         kind, ms, ... }, a kind as "release:version:format"
]]
redis.register_function{
  function_name = 'hw_store_record',
  callback = function(keys)
    local R = keys[1]
    local reply = { server_ms(), tonumber(redis.call('HGET', R, 'format') or 0) }
    each_seen(R, function(kind, _, seen)
      reply[#reply + 1], reply[#reply + 2] = kind, seen
    end)
    return reply
  end,
  flags = { 'no-writes' },
}

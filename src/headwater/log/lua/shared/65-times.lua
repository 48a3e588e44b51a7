--[[
  How long messages have waited, as far as this is known without opening a node; see store/lua/shared/60-looks.lua.
]]
-- Returns the time of the first message from an offset on; for a sealed message, the newest time up to the
-- end of its node. Returns '' when there is none.
function looks.time_at(K, stream, offset)
  offset = math.max(offset, stream.first)
  if offset > stream.last then return '' end
  if offset > stream.sealed then
    local entry = redis.call('XRANGE', K .. ':tail', '0-' .. digits(offset), '+', 'COUNT', 1)[1]
    return entry and time_of(entry_field(entry, 't') or '') or ''
  end
  local member = redis.call('ZRANGE', K .. ':index', digits(offset), '+inf', 'BYSCORE', 'LIMIT', 0, 1)[1]
  return member and parse_node(member).newest or ''
end

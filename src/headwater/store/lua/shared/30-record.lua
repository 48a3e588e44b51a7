--[[
  The record of a store: the format in use, and when each kind of client was last seen. All releases use it, so
  its layout is the same for all of them.

    R   hash   format -> the format in use
               <release>:<version of its contract>:<newest format that it understands> -> ms when a
               client of that kind was seen last
]]
-- Calls back with the name of each kind of client, its format, and when it was seen last.
local function each_seen(R, visit)
  local fields = redis.call('HGETALL', R)
  for i = 1, #fields, 2 do
    local format = string.match(fields[i], ':(%d+)$')
    if format then visit(fields[i], tonumber(format), tonumber(fields[i + 1])) end
  end
end

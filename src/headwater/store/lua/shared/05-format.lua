--[[
  Formats: how objects lie in the server. An object that has a format says so in the field `format`
  of its hash; one that has none is of format 1. The library begins with two numbers: FORMAT is the
  newest format that its functions understand, and WRITES the one in which they write what is new,
  which lags behind until no older client is left (see record.lua). Whoever loads an object
  reads its format with the other fields, and passes it here first.
]]
-- Raises an error for an object that a newer release has written; nothing is changed yet then.
local function check_format(format)
  if format and format ~= '1' and tonumber(format) > FORMAT then
    error(redis.error_reply('HW_FORMAT ' .. format))
  end
end

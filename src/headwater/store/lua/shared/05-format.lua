--[[
  Formats of stored objects. The hash of an object has its format in the field `format`; without one it is
  format 1. The library begins with two numbers: FORMAT is the newest format that its functions understand, and
  WRITES the one in which they write new objects, which stays behind until no older client is left (see
  record.lua). Each function that loads an object reads its format with the other fields, and passes it to
  check_format first.
]]
local NEWEST_FORMAT = FORMAT .. ''

-- Raises an error for an object that a newer release has written, before anything is changed.
local function check_format(format)
  if format and format ~= NEWEST_FORMAT and tonumber(format) > FORMAT then
    error(redis.error_reply('HW_FORMAT ' .. format))
  end
end

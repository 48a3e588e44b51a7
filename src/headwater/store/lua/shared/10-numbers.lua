--[[
  Time and numbers, for every data type: the server's clock, and numbers as text without loss of digits.
]]
local function server_us()
  local now = redis.call('TIME')
  return now[1] * 1000000 + now[2]
end

local function server_ms()
  return math.floor(server_us() / 1000)
end

-- Returns a number above the last one that was given. It follows the clock, so that a server which has lost the
-- last ones in a failover does not give them again: its clock is not behind by as much as a failover takes.
local function next_by_clock(last)
  return math.max(last + 1, server_us())
end

-- Converts a text of digits to a number, in a third of the time of tonumber. Raises an error for any other
-- text.
local function to_number(text)
  return text + 0
end

-- Lua prints large numbers as 1e+15; offsets and times must keep their digits. Formatting them as integers
-- takes half the time, where integers of the server have 64 bits; a library cannot check this while it loads.
-- A number that is a whole argument of a command keeps its digits by itself, at no cost.
local whole

local function digits(number)
  if not whole then whole = string.format('%d', 2 ^ 53) == '9007199254740992' and '%d' or '%.0f' end
  return string.format(whole, number)
end

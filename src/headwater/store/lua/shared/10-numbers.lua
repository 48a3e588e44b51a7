--[[
  Time and numbers, for every data type: the server's clock, and digits that no number loses.
]]
local function server_us()
  local now = redis.call('TIME')
  return tonumber(now[1]) * 1000000 + tonumber(now[2])
end

local function server_ms()
  return math.floor(server_us() / 1000)
end

-- Lua prints large numbers as 1e+15; offsets and times must keep their digits.
local function digits(number)
  return string.format('%.0f', number)
end

--[[
  Checksums of stored messages. The client computes the CRC-32 of what it writes, and checks it when it
  reads: of a tag, headers and a value, or of a node, whose header carries it. The server has no CRC; it adds
  what it decides itself: offset, time and count. The sum is taken modulo a prime, so that a change of any
  one of them is always noticed and the sum stays within the integers of Lua.
]]
local CHECK_PRIME = 4294967291

local function checksum(crc, offset, time, count)
  return (crc + time % CHECK_PRIME + 3 * (offset % CHECK_PRIME) + 5 * (count % CHECK_PRIME)) % CHECK_PRIME
end

-- Returns a stored time followed by its checksum: "time-checksum", or the time alone without one.
local function checked_time(crc, offset, time, count)
  return digits(time) .. '-' .. digits(checksum(crc, offset, time, count))
end

local function time_of(text)
  return tonumber(string.match(text, '^%d+'))
end

-- Returns the CRC in the header of a node; 0 for an empty node, which has no bytes.
local function node_crc(blob)
  local a, b, c, d = string.byte(blob, 13, 16)
  return d and a + 256 * b + 65536 * c + 16777216 * d or 0
end

--[[
  Checksums of what is at rest. The client takes the CRC-32 of what it sends, and checks it when it
  reads: a tag, headers and a value, or a node, whose header carries it. The server, which has no CRC, adds
  what it decides itself: offset, time and count. The sum is taken modulo a prime, so that a change of
  any one of them is always noticed, and the sum stays within the integers of Lua.
]]
local CHECK_PRIME = 4294967291
-- Versions of nodes from here on are this number plus a checksum; smaller ones are of older writers.
local NODE_VERSION = 4294967296

local function checksum(crc, offset, time, count)
  return (crc + time % CHECK_PRIME + 3 * (offset % CHECK_PRIME) + 5 * (count % CHECK_PRIME)) % CHECK_PRIME
end

-- A time at rest with its checksum behind it: "time-checksum", or the time alone without one.
local function checked_time(crc, offset, time, count)
  return digits(time) .. '-' .. digits(checksum(crc, offset, time, count))
end

local function time_of(text)
  return tonumber(string.match(text, '^%d+'))
end

-- Whether a message of a node has headers: only then it is of the second version.
local function has_headers(blob)
  return string.byte(blob, 3) == 2
end

-- Returns the CRC in the header of a node; 0 for a node of which nothing is left, which has no bytes.
local function node_crc(blob)
  local a, b, c, d = string.byte(blob, 13, 16)
  return d and a + 256 * b + 65536 * c + 16777216 * d or 0
end

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

-- Headers of messages came with this format.
local HEADERS_FORMAT = 2

-- Raises an error when messages have headers and older clients may read them, before anything is changed.
local function require_headers()
  if WRITES < HEADERS_FORMAT then
    error(redis.error_reply('HW_NOT_YET ' .. HEADERS_FORMAT .. ' ' .. WRITES))
  end
end

-- Records in the hash of an object that its messages have headers: releases without headers then refuse it.
local function note_headers(K)
  if tonumber(redis.call('HGET', K, 'format') or 1) < HEADERS_FORMAT then
    redis.call('HSET', K, 'format', HEADERS_FORMAT)
  end
end

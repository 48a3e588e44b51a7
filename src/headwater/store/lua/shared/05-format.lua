--[[
  Formats: how objects lie in the server. An object that has a format says so in the field `format`
  of its hash; one that has none is of format 1. The library begins with two numbers: FORMAT is the
  newest format that its functions understand, and WRITES the one in which they write what is new,
  which lags behind until no older client is left (see record.lua). Whoever loads an object
  reads its format with the other fields, and passes it here first.
]]
local NEWEST_FORMAT = FORMAT .. ''

-- Raises an error for an object that a newer release has written; nothing is changed yet then.
local function check_format(format)
  if format and format ~= NEWEST_FORMAT and tonumber(format) > FORMAT then
    error(redis.error_reply('HW_FORMAT ' .. format))
  end
end

-- Headers of messages came with this format.
local HEADERS_FORMAT = 2

-- Raises an error when messages are to have headers and older clients may read them; nothing is changed
-- yet then.
local function require_headers()
  if WRITES < HEADERS_FORMAT then
    error(redis.error_reply('HW_NOT_YET ' .. HEADERS_FORMAT .. ' ' .. WRITES))
  end
end

-- Notes in the hash of an object that messages of it have headers: releases that know none refuse it.
local function note_headers(K)
  if tonumber(redis.call('HGET', K, 'format') or 1) < HEADERS_FORMAT then
    redis.call('HSET', K, 'format', HEADERS_FORMAT)
  end
end

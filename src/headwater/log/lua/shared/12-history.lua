--[[
  History: which of two messages with the same offset somebody has seen.

  A server that loses writes, in a failover or a crash, gives their offsets to other messages. Whoever
  had read or written the lost ones cannot tell by offsets alone. So a stream keeps, for each server
  process that has written it, from which offset on:

    K field history   "token:first token:first ...", in order, the first offsets growing; 16 at most

  The token is a time in microseconds. A process knows the end that it left itself; when it finds another
  one, or has not written the stream before, it adds itself. That costs a write nothing else.
]]
local HISTORIES = 16
local KNOWN_ENDS = 10000
-- Of this server process, not of the data: the last offset that it has given of each stream.
local known_ends, known_count = {}, 0

local function note_known_end(K, last)
  if not known_ends[K] then
    if known_count >= KNOWN_ENDS then known_ends, known_count = {}, 0 end
    known_count = known_count + 1
  end
  known_ends[K] = last
end

-- To be called before a stream is written.
local function continue_history(K, stream)
  if stream.last == 0 or known_ends[K] == stream.last then return end
  local first, kept = stream.last + 1, {}
  for token, from in string.gmatch(redis.call('HGET', K, 'history') or '', '(%d+):(%d+)') do
    if tonumber(from) < first then kept[#kept + 1] = token .. ':' .. from end
  end
  if #kept >= HISTORIES then table.remove(kept, 1) end
  kept[#kept + 1] = digits(server_us()) .. ':' .. digits(first)
  stream.history = table.concat(kept, ' ')
  redis.call('HSET', K, 'history', stream.history)
end

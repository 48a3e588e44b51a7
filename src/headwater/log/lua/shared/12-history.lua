--[[
  History: tells apart messages that had the same offset at different times.

  A server that loses writes, in a failover or a crash, gives their offsets to other messages. A client that
  read or wrote the lost ones cannot notice this by offsets alone. So a stream keeps, for each server process
  that has written it, the first offset that it wrote:

    K field history   "token:first token:first ...", in order, the first offsets growing; 16 at most

  The token is a time in microseconds. A process remembers the end that it left; when it finds another one, or
  has not written the stream before, it adds itself. Other writes cost nothing more.
]]
local HISTORIES = 16
local KNOWN_ENDS = 10000
-- In the memory of this server process: the last offset that it has assigned in each stream.
local known_ends, known_count = {}, 0

local function note_known_end(K, last)
  if not known_ends[K] then
    if known_count >= KNOWN_ENDS then known_ends, known_count = {}, 0 end
    known_count = known_count + 1
  end
  known_ends[K] = last
end

-- Must be called before a stream is written.
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

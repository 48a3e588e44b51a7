--[[
  hw_stream_profile: get the distribution of messages over offsets, times and bytes, from the index of nodes.
  No message is read.
  KEYS   1 the stream
  ARGV   1 first offset   2 last offset   3 how many nodes are looked at, 1 to 512
  Reply  name, value, ...: first, last, sealed, cold (nodes up to this offset are cold), holes, bytes (of all nodes),
         tail_bytes, time (of the newest message), nodes (of the part), cold_nodes, all_nodes, all_cold_nodes,
         before { last offset and newest time up to there, of the node before the part } or {},
         sample { base, last, messages, bytes, newest time up to there, ... } (of nodes of the part, in order, at equal
         distances; all of them when there are no more than asked for),
         tail { last offset, time, ... } (of entries of the tail in the part, in order; 64 at most)
  Cost   O(sample * log nodes), whatever the length of the part
]]
local MOST_SAMPLES = 512
local TAIL_SAMPLES = 64
-- A tail with more bytes has large entries, so fewer of them are read.
local LARGE_TAIL = 4 * 1024 * 1024
local LARGE_TAIL_SAMPLES = 8

local function sample_row(words, found)
  local node, n = parse_node(found[1]), #words
  words[n + 1], words[n + 2], words[n + 3] = node.base, tonumber(found[2]), node.count
  words[n + 4], words[n + 5] = node.bytes, node.newest
end

-- Returns times of some entries of the tail between two offsets, at equal distances.
local function tail_samples(K, first, last, bytes)
  local words, seen = {}, 0
  local count = math.min(last - first + 1, bytes > LARGE_TAIL and LARGE_TAIL_SAMPLES or TAIL_SAMPLES)
  for i = 1, count do
    local at = first + math.floor((last - first + 1) * i / count) - 1
    local entry = redis.call('XRANGE', K .. ':tail', '0-' .. digits(at), '+', 'COUNT', 1)[1]
    local offset = entry and tonumber(string.sub(entry[1], 3))
    local time = entry and time_of(entry_field(entry, 't') or '')
    if time and offset > seen then
      seen = offset
      words[#words + 1], words[#words + 2] = offset, time
    end
  end
  return words
end

redis.register_function{
  function_name = 'hw_stream_profile',
  callback = function(keys, args)
    local K, first, last, most = keys[1], to_number(args[1]), to_number(args[2]), to_number(args[3])
    local stream, cold, holes, bytes, time = load_stream(K, 'cold', 'holes', 'bytes', 'time')
    local index, words, before = K .. ':index', {}, {}
    local unsealed = tail_bytes(K, stream)
    local tail = tail_samples(K, math.max(first, stream.first, stream.sealed + 1), math.min(last, stream.last), unsealed)
    first, last = math.max(first, stream.first), math.min(last, stream.sealed)
    cold = math.min(cold_end(stream, cold), stream.sealed)
    -- Nodes are found by their last offsets; the one that holds `last` ends there or later.
    local place = redis.call('ZCOUNT', index, '-inf', '(' .. digits(first))
    local nodes, cold_nodes = 0, 0
    if first <= last then
      nodes = redis.call('ZCOUNT', index, '-inf', '(' .. digits(last)) + 1 - place
      cold_nodes = math.min(nodes, math.max(redis.call('ZCOUNT', index, '-inf', digits(cold)) - place, 0))
      local hidden = redis.call('ZRANGE', index, place - 1, place - 1, 'WITHSCORES')
      if place > 0 and hidden[2] then before = { tonumber(hidden[2]), parse_node(hidden[1]).newest } end
      most = math.max(1, math.min(most, MOST_SAMPLES))
      if nodes <= most then
        local found = redis.call('ZRANGE', index, place, place + nodes - 1, 'WITHSCORES')
        for i = 1, #found, 2 do sample_row(words, { found[i], found[i + 1] }) end
      else
        for i = 1, most do
          local rank = place + math.floor(nodes * i / most) - 1
          sample_row(words, redis.call('ZRANGE', index, rank, rank, 'WITHSCORES'))
        end
      end
    end
    return {
      'first', stream.first,
      'last', stream.last,
      'sealed', stream.sealed,
      'cold', cold,
      'holes', tonumber(holes or 0),
      'bytes', tonumber(bytes or 0),
      'tail_bytes', unsealed,
      'time', tonumber(time or 0),
      'nodes', nodes,
      'cold_nodes', cold_nodes,
      'all_nodes', redis.call('ZCOUNT', index, digits(stream.first), digits(stream.sealed)),
      'all_cold_nodes', redis.call('ZCOUNT', index, digits(stream.first), digits(cold)),
      'before', before,
      'sample', words,
      'tail', tail,
    }
  end,
  flags = { 'no-writes' },
}

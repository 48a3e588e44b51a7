--[[
  hw_group_ruler: get which offsets of a part of a stream are pending, dead or missed in a group.
  KEYS   1 the stream
  ARGV   1 group   2 first offset   3 last offset   4 cells into which the part is cut, 1 to 512
  Reply  name, value, ...: next, ack_offset,
         pending { first, last, attempt, when it is due (ms; 0: now), ranges, ... },
         dead { first, last, attempt, ranges, ... }, dead_unknown (ranges of dead letters that are not in that
         list, because their places are lost),
         gaps { first, last, ... } (the newest 16), missed (messages in all gaps that there were),
         start (where the group began, or the lowest offset that it was set to since; 0 when not known),
         jumps { first, last, ... } (offsets that a seek skipped and that were not read since)
         error HW_NO_GROUP
  Cost   O(cells * log ranges), whatever the length of the part

  If there are at most as many pending ranges as cells, they are returned one by one. Otherwise those that
  begin in the same cell are combined: from the first offset of the first to the last offset of the last,
  with the attempt and the deadline of the first. So are the ranges of dead letters that end in the same cell.
]]
local MOST_CELLS = 512

-- Adds ranges to a reply, each with the number of ranges that it stands for.
local function add_ranges(G, words, ranges, counts)
  if not ranges[1] then return end
  local starts = {}
  for i, range in ipairs(ranges) do starts[i] = range.start end
  local dues = redis.call('ZMSCORE', G .. ':due', unpack(starts))
  for i, range in ipairs(ranges) do
    local n = #words
    words[n + 1], words[n + 2], words[n + 3] = range.first, range.last, range.attempt
    words[n + 4], words[n + 5] = tonumber(dues[i] or 0), counts and counts[i] or 1
  end
end

-- Returns the ranges of a sorted set whose scores are in first..last, combined by cell.
local function by_cells(key, first, last, cells, parse)
  local found, counts, width = {}, {}, (last - first + 1) / cells
  for cell = 0, cells - 1 do
    local low = digits(first + math.floor(cell * width))
    local high = digits(first + math.floor((cell + 1) * width) - 1)
    local begins = redis.call('ZRANGE', key, low, high, 'BYSCORE', 'LIMIT', 0, 1)
    if begins[1] then
      local ends = redis.call('ZRANGE', key, high, low, 'BYSCORE', 'REV', 'LIMIT', 0, 1)
      local range = parse(begins[1])
      range.last = parse(ends[1]).last
      found[#found + 1] = range
      counts[#counts + 1] = redis.call('ZCOUNT', key, low, high)
    end
  end
  return found, counts
end

redis.register_function{
  function_name = 'hw_group_ruler',
  callback = function(keys, args)
    local K, name, first, last, cells = keys[1], args[1], to_number(args[2]), to_number(args[3]), to_number(args[4])
    local G, stream = group_key(K, name), load_stream(K)
    local group = load_group(G, stream)
    if not group then return no_group() end
    cells = math.max(1, math.min(cells, MOST_CELLS, last - first + 1))
    local pending, dead, gaps, jumps = {}, {}, {}, {}
    if group.seeking == 0 and group.pending > 0 and first <= last then
      local before = redis.call('ZRANGE', G .. ':pending', '(' .. digits(first), '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 1)
      local reaching = before[1] and parse_pending(before[1])
      if reaching and reaching.last >= first then add_ranges(G, pending, { reaching }) end
      if redis.call('ZCOUNT', G .. ':pending', digits(first), digits(last)) <= cells then
        local ranges = {}
        for i, member in ipairs(redis.call('ZRANGE', G .. ':pending', digits(first), digits(last), 'BYSCORE')) do
          ranges[i] = parse_pending(member)
        end
        add_ranges(G, pending, ranges)
      else
        add_ranges(G, pending, by_cells(G .. ':pending', first, last, cells, parse_pending))
      end
      for _, _, low, high, due in string.gmatch(group.handed, HANDED) do
        if to_number(high) >= first and to_number(low) <= last then
          local n = #pending
          pending[n + 1], pending[n + 2], pending[n + 3] = to_number(low), to_number(high), 1
          pending[n + 4], pending[n + 5] = to_number(due), 1
        end
      end
    end
    local letters, counts = dead_ranges.with_messages(G, first, last, cells), {}
    if not letters then letters, counts = by_cells(G .. ':origins', first, last, cells, dead_ranges.parse) end
    for i, range in ipairs(letters) do
      local n = #dead
      dead[n + 1], dead[n + 2], dead[n + 3], dead[n + 4] = range.first, range.last, range.attempt, counts[i] or 1
    end
    local f = redis.call('HMGET', G, 'gaps', 'start', 'jumps', 'missed')
    for number in string.gmatch(f[1] or '', '%d+') do gaps[#gaps + 1] = to_number(number) end
    for number in string.gmatch(f[3] or '', '%d+') do jumps[#jumps + 1] = to_number(number) end
    return {
      'next', group.seeking > 0 and group.seeking or group.next,
      'ack_offset', group_position(G),
      'pending', pending,
      'dead', dead,
      'dead_unknown', redis.call('ZCARD', G .. ':dead') - redis.call('ZCARD', G .. ':origins'),
      'gaps', gaps,
      'missed', to_number(f[4] or 0),
      'start', to_number(f[2] or 0),
      'jumps', jumps,
    }
  end,
  flags = { 'no-writes' },
}

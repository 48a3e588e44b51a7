--[[
  Reading: collects the nodes and tail entries that hold a range of offsets.

  A reply is a flat list:
    nodes    base, last, time, version, blob, base, last, ...
    entries  as XRANGE returns them: id 0-<last>, then the fields (15-append.lua)
             k <tag> v <value> t <time-checksum>        one message; before it h <headers> if it has any
             n <count> t <time-checksum> d <blob>       a packed batch
  The blob is false for the node that the client said it still has.
]]
-- Returns the bytes of what is not sealed yet; 0 for a tail that only keeps its newest entry.
local function tail_bytes(K, stream)
  if stream.last == stream.sealed then return 0 end
  return redis.call('MEMORY', 'USAGE', K .. ':tail') or 0
end

-- limits: "bytes:bytes unpacked"; without the second, only the first counts. kept: "created:base:version" of a
-- node that the caller still has. bag.waiter names a blocked member that is served: it fetches nodes itself, so
-- they are not added.
local function new_bag(stream, limits, kept)
  local limit, most = string.match(limits, '^(%d+):?(%d*)$')
  return {
    nodes = {}, entries = {}, seen = {}, bytes = 0, limit = tonumber(limit), kept = kept,
    created = stream.created, unpacked = 0, most = tonumber(most) or math.huge,
  }
end

-- Returns how many bytes a node has unpacked, as its header says: a few bytes may stand for many.
local function unpacked_bytes(blob)
  local a, b, c, d = string.byte(blob, 9, 12)
  return d and math.max(#blob, a + 256 * b + 65536 * c + 16777216 * d) or #blob
end

-- Counts what is added; a bag that is full unpacked is full.
local function count_bytes(bag, bytes, unpacked)
  bag.bytes, bag.unpacked = bag.bytes + bytes, bag.unpacked + unpacked
  if bag.unpacked >= bag.most then bag.bytes = math.max(bag.bytes, bag.limit) end
end

local function bag_node(K, bag, node, last)
  local base = digits(node.base)
  if bag.seen[base] then return end
  bag.seen[base] = true
  local blob = false
  if bag.kept ~= bag.created .. ':' .. base .. ':' .. digits(node.version) then
    blob = node.blob or redis.call('HGET', K .. ':nodes', base)
    count_bytes(bag, node.bytes, blob and unpacked_bytes(blob) or 0)
  end
  if bag.waiter then blob = false end
  local n = #bag.nodes
  bag.nodes[n + 1], bag.nodes[n + 2], bag.nodes[n + 3] = node.base, last, node.time
  bag.nodes[n + 4], bag.nodes[n + 5] = node.version, blob
end

local function entry_bytes(entry)
  local fields, bytes = entry[2], 0
  for i = 2, #fields, 2 do bytes = bytes + #fields[i] end
  return bytes
end

local function bag_entry(bag, entry)
  if not bag.seen[entry[1]] then
    bag.seen[entry[1]] = true
    bag.entries[#bag.entries + 1] = entry
    local blob, bytes = entry_field(entry, 'd'), entry_bytes(entry)
    count_bytes(bag, bytes, blob and unpacked_bytes(blob) or bytes)
  end
end

-- Adds entries of one message each, none of which is added twice, until the bag is full; returns how many.
local function bag_singles(bag, found)
  local entries, bytes = bag.entries, 0
  local limit = math.min(bag.limit - bag.bytes, bag.most - bag.unpacked)
  local taken, n = #found, #entries
  for i, entry in ipairs(found) do
    entries[n + i] = entry
    bytes = bytes + entry_bytes(entry)
    if bytes >= limit then
      taken = i
      break
    end
  end
  count_bytes(bag, bytes, bytes)
  return taken
end

-- Collects from `from` until `want` messages or the offset `to` or the bag's byte limit is reached, whichever
-- is first, but at least one node or entry. Returns the last offset covered (from - 1 when there is nothing)
-- and the highest possible number of messages in it. A node with holes counts its messages only when it is
-- taken whole; otherwise offsets are counted. An offset without node or entry was lost: it is covered like the
-- others, and the client finds that nothing holds it. stream.newest: the entry of the last offset, when the
-- caller has just written it.
local function collect(K, stream, from, to, want, bag)
  local at, got = from, 0
  to = math.min(to, stream.last)
  -- A node has about 1000 messages, or fewer when they are large.
  local most = math.ceil(math.min(to - at + 1, want) / 1000) + 1
  while at <= to and at <= stream.sealed and got < want and bag.bytes < bag.limit do
    most = math.min(most, 64)
    local found, place = redis.call('ZRANGE', K .. ':index', digits(at), '+inf', 'BYSCORE',
      'LIMIT', 0, most, 'WITHSCORES'), 1
    repeat
      local node = found[place] and parse_node(found[place])
      -- Nodes have no gaps between them: a missing one is replacing others (17-replace.lua).
      local missing = (not node or node.base > at) and replacing_node(K, at)
      if missing then
        node = missing
      elseif node then
        node.last, place = tonumber(found[place + 1]), place + 2
      else
        local stop = math.min(stream.sealed, to, at + (want - got) - 1)
        got, at = got + (stop - at + 1), stop + 1
        break
      end
      local last = node.last
      bag_node(K, bag, node, last)
      if at == node.base and last <= to and node.count <= want - got then
        got = got + node.count
        at = last + 1
      else
        local stop = math.min(last, to, at + (want - got) - 1)
        got = got + (stop - at + 1)
        at = stop + 1
      end
    until place > #found or at > math.min(to, stream.sealed) or got >= want or bag.bytes >= bag.limit
    most = 4 * most
  end
  while at <= to and at > stream.sealed and got < want and bag.bytes < bag.limit do
    local found = at == stream.last and stream.newest and { stream.newest }
      or redis.call('XRANGE', K .. ':tail', '0-' .. digits(at), '+',
        'COUNT', math.min(want - got, to - at + 1, 256))
    local n = #found
    if n == 0 then
      local stop = math.min(to, at + (want - got) - 1)
      got, at = got + (stop - at + 1), stop + 1
    elseif offset_of(found[n]) == at + n - 1 and found[1][2][1] ~= 'n' then
      -- As many entries as offsets, and the first is not the end of a packed batch: each is one message.
      local taken = bag_singles(bag, found)
      at, got = at + taken, got + taken
    else
      for _, entry in ipairs(found) do
        if at > to or got >= want or bag.bytes >= bag.limit then break end
        bag_entry(bag, entry)
        local stop = math.min(offset_of(entry), to, at + (want - got) - 1)
        got = got + (stop - at + 1)
        at = stop + 1
      end
    end
  end
  return at - 1, got
end

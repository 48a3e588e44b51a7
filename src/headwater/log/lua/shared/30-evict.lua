--[[
  Eviction: offsets below `first` are gone for every reader at once; their nodes are freed in bounded
  steps, so that no call blocks the server for long.

    K field freed   nodes up to this offset are no longer counted in `bytes` and `holes`. It moves in one
                    command with both; then they are deleted, by this call or, if it stops half-way, by
                    the next.
]]
local EVICT_NODES = 256

-- The limits of a retention policy: fields of the hash K, '' or missing for none.
local RETENTION = { 'max_count', 'max_age_ms', 'max_bytes', 'max_idle_ms' }

-- Returns the policy as limit, value, limit, value, ...
local function retention_words(K)
  local words = {}
  for i, value in ipairs(redis.call('HMGET', K, unpack(RETENTION))) do
    words[2 * i - 1], words[2 * i] = RETENTION[i], value or ''
  end
  return words
end

local function set_retention(K, policy)
  local words = {}
  for i, limit in ipairs(RETENTION) do words[2 * i - 1], words[2 * i] = limit, policy[limit] or '' end
  redis.call('HSET', K, unpack(words))
end

-- Returns the policy as a table; a limit that is not set is nil.
local function load_retention(K)
  local policy, words = {}, retention_words(K)
  for i = 1, #words, 2 do policy[words[i]] = tonumber(words[i + 1]) end
  return policy
end

-- Returns the highest offset such that at least n messages are above it. In a node with holes only the number
-- of its messages is known, not where they are: such a node is kept whole.
local function limit_for(K, stream, n)
  local holes = tonumber(redis.call('HGET', K, 'holes') or 0)
  local left = n - (stream.last - stream.sealed)
  if holes == 0 or left <= 0 then return stream.last - n end
  if n >= stream.last - stream.first + 1 - holes then return stream.first - 1 end
  local below = stream.sealed
  while true do
    local found = redis.call('ZRANGE', K .. ':index', digits(below), '-inf', 'BYSCORE', 'REV',
      'LIMIT', 0, 64, 'WITHSCORES')
    if #found == 0 then return stream.first - 1 end
    for i = 1, #found, 2 do
      local node, last = parse_node(found[i]), tonumber(found[i + 1])
      below = node.base - 1
      if node.count >= left then
        return node.count == last - below and last - left or below
      end
      left = left - node.count
    end
  end
end

-- Returns what an eviction needs to know about a node. If its row of the index cannot be read, the node
-- itself is used: nodes have no gaps between them, and the header of a node has its number of messages.
-- freed: the last offset of the nodes that are gone.
local function evicted_node(K, member, last, freed)
  local fine, node = pcall(parse_node, member)
  if fine then return node end
  local before = redis.call('ZRANGE', K .. ':index', '(' .. digits(last), '-inf', 'BYSCORE', 'REV',
    'LIMIT', 0, 1, 'WITHSCORES')
  local base = tonumber(before[2] or freed) + 1
  -- Its bytes are no longer counted: the row is good enough up to its end.
  if base > last then base = math.min(tonumber(string.match(member, '%d+') or last), last) end
  local blob = redis.call('HGET', K .. ':nodes', digits(base)) or ''
  local a, b, c, d = string.byte(blob, 5, 8)
  local count = d and a + 256 * b + 65536 * c + 16777216 * d or math.huge
  return { base = base, count = math.min(count, last - base + 1), bytes = #blob, fault = node }
end

-- Evicts all offsets up to `limit`. Returns how many messages were evicted, whether another call must free
-- more, and the node that was in the way. Holes are only counted when their nodes are freed, so a later call
-- may correct the count downwards. A node with holes is evicted whole or not at all, so that the number of
-- messages left is always known; a caller that wants to cut through it must rewrite it (hw_stream_replace).
local function evict(K, stream, limit)
  local f = redis.call('HMGET', K, 'bytes', 'holes', 'freed', 'replacing')
  finish_replace(K, f[4])
  limit = math.min(limit, stream.last)
  local in_the_way = {}
  local cut = redis.call('ZRANGE', K .. ':index', digits(limit + 1), '+inf', 'BYSCORE',
    'LIMIT', 0, 1, 'WITHSCORES')
  if cut[1] then
    local last = tonumber(cut[2])
    local node = evicted_node(K, cut[1], last, f[3] or 0)
    if node.base <= limit and node.count < last - node.base + 1 then
      if node.fault then error(node.fault) end
      in_the_way = { node.base, last, node.count, node.version, limit + 1 }
      limit = node.base - 1
    end
  end
  local gone = math.max(limit - stream.first + 1, 0)
  local first = math.max(limit + 1, stream.first)
  local into_tail = first - 1 > stream.sealed
  local dead = redis.call('ZRANGE', K .. ':index', '-inf', digits(first - 1), 'BYSCORE',
    'LIMIT', 0, EVICT_NODES, 'WITHSCORES')
  if gone == 0 and #dead == 0 then return 0, 0, in_the_way end
  local bytes, holes, freed = tonumber(f[1] or 0), tonumber(f[2] or 0), tonumber(f[3] or 0)
  local bases, counted = {}, freed
  for i = 1, #dead, 2 do
    local last = tonumber(dead[i + 1])
    local node = evicted_node(K, dead[i], last, counted)
    bases[#bases + 1], freed = digits(node.base), math.max(freed, last)
    -- One above `sealed` was left by a seal that stopped half-way, and was never counted.
    if last > counted and last <= stream.sealed then
      local empty = last - node.base + 1 - node.count
      bytes, holes, gone = bytes - node.bytes, holes - empty, gone - empty
    end
  end
  stream.first = first
  if into_tail then stream.sealed = first - 1 end
  redis.call('HSET', K, 'first', digits(first), 'sealed', digits(stream.sealed), 'bytes', digits(bytes),
    'holes', digits(holes), 'freed', digits(freed))
  if into_tail then trim_tail(K, stream) end
  if bases[1] then
    redis.call('HDEL', K .. ':nodes', unpack(bases))
    redis.call('ZREMRANGEBYSCORE', K .. ':index', '-inf', digits(freed))
  end
  return gone, #dead == 2 * EVICT_NODES and 1 or 0, in_the_way
end

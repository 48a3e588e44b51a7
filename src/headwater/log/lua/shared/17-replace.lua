--[[
  Replacing neighbouring nodes by one node; at every moment each message is in one of them.

  The new node is first stored as `new` in K:nodes. Then one command commits the change: K records it as
  `replacing`, together with the counts after it. After that the index and the nodes are changed to match;
  this may be repeated, and the next call that changes nodes does so. Until then a reader that misses a node in
  the index finds it by this record.

    K field replacing   "base:last:count:time:lowest:member bases", where lowest is the last offset of
                        the first old node, member is the new member of the index, its colons as
                        commas, and bases are those of the old nodes, commas between them
]]
local REPLACING = '^(%d+):(%d+):(%d+):(%d+):(%d+):(%S+) (%S+)$'

local function parse_replacing(text)
  local base, last, count, time, lowest, member, bases = string.match(text, REPLACING)
  return {
    base = tonumber(base), last = tonumber(last), count = tonumber(count), time = tonumber(time),
    lowest = lowest, member = string.gsub(member, ',', ':'), bases = bases,
  }
end

local function replacing_text(base, last, count, time, lowest, member, bases)
  return table.concat({ digits(base), digits(last), digits(count), digits(time), digits(lowest),
    (string.gsub(member, ':', ',')) }, ':') .. ' ' .. table.concat(bases, ',')
end

local function finish_replace(K, text)
  if not text then return end
  local change = parse_replacing(text)
  local nodes, index = K .. ':nodes', K .. ':index'
  redis.call('ZREMRANGEBYSCORE', index, change.lowest, digits(change.last))
  local blob = redis.call('HGET', nodes, 'new')
  if blob then redis.call('HSET', nodes, digits(change.base), blob) end
  for base in string.gmatch(change.bases, '%d+') do
    if tonumber(base) ~= change.base then redis.call('HDEL', nodes, base) end
  end
  redis.call('ZADD', index, digits(change.last), change.member)
  redis.call('HDEL', nodes, 'new')
  redis.call('HDEL', K, 'replacing')
end

-- Returns the node that holds an offset and is not in the index, because it is replacing others.
local function replacing_node(K, offset)
  local text = redis.call('HGET', K, 'replacing')
  local change = text and parse_replacing(text)
  if not change or offset < change.base or offset > change.last then return nil end
  local node = parse_node(change.member)
  node.last = change.last
  node.blob = redis.call('HGET', K .. ':nodes', 'new')
  return node
end

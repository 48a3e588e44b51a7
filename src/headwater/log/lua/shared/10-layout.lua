--[[
  The keys of a stream. K is the stream's key, "hw:s:{<name>}"; every other key of the stream
  begins with K and so is in the same slot of a cluster.

    K              hash    format, first, last, sealed, cold, time, created, bytes, holes, retention policy,
                           waiting: groups in which a member is blocked, each between spaces;
                           freed (30-evict.lua), replacing (17-replace.lua), history (12-history.lua),
                           missing: offsets of messages that the store has lost, "first-last " for each range
    K:tail         stream  messages that are not sealed yet (15-append.lua); entry id 0-<last offset in the entry>
    K:nodes        hash    base offset -> node (a packed batch); new -> a node that replaces others
    K:index        zset    score: last offset of a node; member: "base:count:bytes:time:newest:version"
    K:producers    zset    producer -> time of its latest write
    K:answers      hash    the latest replies to each producer
    K:readers      zset    reader outside the log -> the next offset it needs
    K:groups       zset    group -> time of its creation
    G              hash    a group: next, pending, missed, ... and one field per blocked member
    G:…            zsets   pending, due, expired, waiters, served, members, dead
                   where G is K:g:<length of the group's name>:<group>, so that the name of a group
                   cannot form a key of another

  Offsets at or below `sealed` are in nodes, those above it in the tail. The newest entry of the tail is never
  trimmed, even when it is sealed: a reader that begins to block on the tail too late is then woken at once,
  whatever was sealed or evicted in between.
]]
-- A stream that was never written reads as an empty one. Each field makes every call slower, so a caller
-- names the rarely needed ones, which are returned unchanged after the stream.
local function load_stream(K, ...)
  local f = redis.call('HMGET', K, 'last', 'first', 'sealed', 'created', 'waiting', 'format', 'era', ...)
  check_format(f[6])
  return {
    last = to_number(f[1] or 0), first = to_number(f[2] or 1), sealed = to_number(f[3] or 0),
    created = f[4] or '0', waiting = f[5] or '', era = f[7] or '',
  }, unpack(f, 8)
end

-- Returns the offset up to which nodes are cold, by the field `cold`.
local function cold_end(stream, cold)
  return math.max(to_number(cold or 0), stream.first - 1)
end

local function is_waiting(stream, name)
  return stream.waiting ~= '' and string.find(stream.waiting, ' ' .. name .. ' ', 1, true) ~= nil
end

-- names: of groups, each followed by a space.
local function set_waiting(K, stream, names)
  stream.waiting = names == '' and '' or ' ' .. names
  if names == '' then
    redis.call('HDEL', K, 'waiting')
  else
    redis.call('HSET', K, 'waiting', stream.waiting)
  end
end

local function note_waiting(K, stream, name)
  if not is_waiting(stream, name) then set_waiting(K, stream, string.sub(stream.waiting, 2) .. name .. ' ') end
end

local function forget_waiting(K, stream, name)
  local at, ends = string.find(stream.waiting, ' ' .. name .. ' ', 1, true)
  if at then set_waiting(K, stream, string.sub(stream.waiting, 2, at) .. string.sub(stream.waiting, ends + 1)) end
end

-- An index member contains the facts about a node, which are always needed together. A damaged one raises an
-- error with the base of its node, or 0 when that cannot be read either.
local function parse_node(member)
  local base, count, bytes, time, newest, version =
    string.match(member, '^(%d+):(%d+):(%d+):(%d+):(%d+):(%d+)$')
  if not base then
    error(redis.error_reply('HW_DAMAGED ' .. (string.match(member, '^%d+') or '0')))
  end
  return {
    base = to_number(base), count = to_number(count), bytes = to_number(bytes),
    time = to_number(time), newest = to_number(newest), version = to_number(version),
  }
end

-- Returns the member of the index for a node. time: of every message when the node carries no times of its
-- own. newest: the latest time in this node or any before it, so that it never decreases along the index. The
-- version is a checksum of the node's bytes, place and time (05-checks.lua): it changes with the node, and a
-- reader can check that index and node belong together.
local function node_member(base, last, count, time, newest, blob)
  local version = checksum(node_crc(blob), last, time, last - base + 1)
  return table.concat(
    { digits(base), digits(count), #blob, digits(time), digits(newest), digits(version) }, ':')
end

-- Index entries between `sealed` and `last` were left by a seal that stopped half-way.
local function drop_unfinished_nodes(K, stream)
  if stream.sealed == stream.last then return end
  local low, high = '(' .. digits(stream.sealed), digits(stream.last)
  local bases = {}
  for i, member in ipairs(redis.call('ZRANGE', K .. ':index', low, high, 'BYSCORE')) do
    bases[i] = digits(parse_node(member).base)
  end
  if not bases[1] then return end
  redis.call('HDEL', K .. ':nodes', unpack(bases))
  redis.call('ZREMRANGEBYSCORE', K .. ':index', low, high)
end

-- Returns what a client that rewrites nodes needs to know about them: base, last, count, bytes, time,
-- version, ... found: members of the index with their scores.
local function node_facts(found)
  local facts = {}
  for i = 1, #found, 2 do
    local node, n = parse_node(found[i]), #facts
    facts[n + 1], facts[n + 2], facts[n + 3] = node.base, tonumber(found[i + 1]), node.count
    facts[n + 4], facts[n + 5], facts[n + 6] = node.bytes, node.time, node.version
  end
  return facts
end

-- One range in the field "handed" of a group (see 40-pending.lua): waiter, time, first, last, due, expire.
local HANDED = '(%S+):(%d+):(%d+):(%d+):(%d+):(%d+) '

local function group_key(K, name)
  return K .. ':g:' .. #name .. ':' .. name
end

-- Notes offsets that have neither node nor entry, although no compaction or eviction removed their messages: the
-- store has lost them. The latest 16 ranges are kept.
local function note_missing(K, stream, first, last)
  first, last = math.max(first, stream.first), math.min(last, stream.last)
  if first > last then return end
  local kept = {}
  for low, high in string.gmatch(redis.call('HGET', K, 'missing') or '', '(%d+)-(%d+)') do
    if tonumber(low) <= first and last <= tonumber(high) then return end
    if tonumber(low) < first or last < tonumber(high) then kept[#kept + 1] = low .. '-' .. high .. ' ' end
  end
  if #kept == 16 then table.remove(kept, 1) end
  kept[#kept + 1] = digits(first) .. '-' .. digits(last) .. ' '
  redis.call('HSET', K, 'missing', table.concat(kept))
end

local function trim_tail(K, stream)
  redis.call('XTRIM', K .. ':tail', 'MINID', '0-' .. digits(math.min(stream.sealed + 1, stream.last)))
end

--[[
  Publishing: moves stagings into their stream. See shared/16-staging.lua for the keys.
]]
-- What one step moves at most, so that no call blocks the server for long.
local PUBLISH_NODES = 256
local PUBLISH_BYTES = 8388608

local function load_publish(K, producer)
  local text = redis.call('HGET', K .. ':publishing', producer)
  if not text then return nil end
  local sequence, first, last, index, left, begun, digest =
    string.match(text, '^(%d+):(%d+):(%d+):(%d+):%d+:?(%d*):?(%d*):?([%x.]*)$')
  return {
    sequence = tonumber(sequence), first = tonumber(first), last = tonumber(last),
    index = tonumber(index), begun = begun ~= '0', digest = digest,
    left = tonumber(left) or redis.call('LLEN', publish_key(K, producer)),
  }
end

-- Returns the unfinished publish of a producer. One without a list was about to be dropped.
local function open_publish(K, producer)
  local open = load_publish(K, producer)
  if not open or redis.call('LLEN', publish_key(K, producer)) >= open.left then return open end
  drop_publish(K, producer)
  return nil
end

local function publish_state(open, now)
  return table.concat({ digits(open.sequence), digits(open.first), digits(open.last), digits(open.index),
    digits(now), digits(open.left), open.begun and '1' or '0', open.digest }, ':')
end

local function save_publish(K, producer, open, now)
  redis.call('HSET', K .. ':publishing', producer, publish_state(open, now))
end

-- Returns a staging that cannot be published because it is missing, or belongs to a publish already.
local function missing_staging(K, names)
  for _, name in ipairs(names) do
    local facts = redis.call('HMGET', staged_key(K, name), 'n', 'begun', 'format')
    check_format(facts[3])
    if not facts[1] or facts[2] then return name end
  end
end

-- Begins a publish: once its state is saved, the named stagings belong to it.
local function begin_publish(K, producer, sequence, digest, names, now)
  local P = publish_key(K, producer)
  -- An earlier publish of this producer that stopped before it was begun, or after it was done, or
  -- whose stream was deleted.
  if redis.call('EXISTS', P) == 1 then deleted_publishes.drop_list(K, P) end
  for i = 1, #names, 1000 do
    redis.call('RPUSH', P, unpack(names, i, math.min(i + 999, #names)))
  end
  local open = {
    sequence = sequence, first = 1, last = 0, index = 0, left = #names, begun = false, digest = digest,
  }
  save_publish(K, producer, open, now)
  return open
end

-- Marks the stagings of a publish, so that they are not changed, dropped or expired. Returns a missing one:
-- then the publish cannot continue, nothing of it is in the stream, and it is dropped.
local function hold_stagings(K, producer, open)
  if open.begun then return nil end
  for _, name in ipairs(redis.call('LRANGE', publish_key(K, producer), 0, -1)) do
    local S = staged_key(K, name)
    if redis.call('EXISTS', S) == 0 then
      drop_publish(K, producer)
      return name
    end
    stagings.keep(K, name)
    redis.call('HSET', S, 'begun', 1)
    redis.call('PERSIST', S)
  end
  open.begun = true
end

-- Drops the stagings that were moved entirely.
local function drop_moved(K, producer, open)
  local P = publish_key(K, producer)
  for _ = open.left + 1, redis.call('LLEN', P) do
    stagings.drop(K, redis.call('LINDEX', P, 0))
    redis.call('LPOP', P)
  end
end

-- Frees what this step moved of the staging that is first now.
local function free_moved(K, producer, open, moved)
  local fields = {}
  for at = math.max(0, open.index - moved), open.index - 1 do
    local n = #fields
    fields[n + 1], fields[n + 2] = 'f' .. digits(at), digits(at)
  end
  if not fields[1] then return end
  local S = staged_key(K, redis.call('LINDEX', publish_key(K, producer), 0))
  redis.call('HINCRBY', S, 'bytes', digits(0 - open.taken))
  redis.call('HDEL', S, unpack(fields))
end

-- Returns the nodes of the next step, and whether they are the last ones; advances the state past them. Ends
-- before a node that would wait in the tail behind small ones that came just before it: the caller seals
-- those.
local function next_nodes(K, producer, open, stream)
  local nodes, bytes, clean = {}, 0, stream.sealed == stream.last
  -- Bytes that this step takes of the staging that is first.
  open.taken = 0
  for place = 0, open.left - 1 do
    local S = staged_key(K, redis.call('LINDEX', publish_key(K, producer), place))
    local n = tonumber(redis.call('HGET', S, 'n') or 0)
    while open.index < n do
      if #nodes >= PUBLISH_NODES or bytes >= PUBLISH_BYTES then return nodes, false end
      local at = digits(open.index)
      local found = redis.call('HMGET', S, 'f' .. at, at)
      local count, time, newest, fit = string.match(found[1], '^(%d+):(%d*):(%d*):(%d)$')
      local small = nodes[1] and not nodes[#nodes].fit
      if clean and fit == '1' and small then return nodes, false end
      nodes[#nodes + 1] = {
        count = tonumber(count), time = tonumber(time), newest = tonumber(newest), fit = fit == '1',
        blob = found[2],
      }
      open.index, bytes, open.taken = open.index + 1, bytes + #found[2], open.taken + #found[2]
    end
    open.index, open.left, open.taken = 0, open.left - 1, 0
  end
  return nodes, true
end

-- Moves the next nodes into the stream, as one write; returns whether none is left.
local function move_nodes(K, producer, open, stream, now)
  local nodes, ended = next_nodes(K, producer, open, stream)
  if open.last < open.first then open.first, open.last = stream.last + 1, stream.last end
  if nodes[1] then open.last = stream.last end
  for _, node in ipairs(nodes) do open.last = open.last + node.count end
  local mark = { 'q', producer, 's', publish_state(open, now) }
  for i, node in ipairs(nodes) do
    local fits = append_packed(K, stream, now, node.count, node.time, node.newest, node.fit, node.blob,
      i == #nodes and mark or MORE)
    if not fits then error({ err = 'ERR the tail of the stream goes beyond its end' }) end
  end
  save_publish(K, producer, open, now)
  if nodes[1] then
    note_end(K, stream)
    serve_all(K, stream, now)
  end
  drop_moved(K, producer, open)
  free_moved(K, producer, open, #nodes)
  return ended
end

-- A write of the same producer with a later sequence may have come in between: that stays the newest.
local function finish_publish(K, producer, open, now)
  local newest = tonumber(redis.call('HGET', K .. ':answers', producer) or 0)
  remember_answer(K, producer, open.sequence, open.first, open.last, now, open.digest, newest)
  redis.call('HDEL', K .. ':publishing', producer)
  redis.call('UNLINK', publish_key(K, producer))
end

-- Returns whether a publish should wait with its first step: batches that become nodes as they are should not
-- follow unsealed messages in the tail, which the caller can seal.
local function better_sealed_first(K, names, stream)
  local facts = names[1] and redis.call('HGET', staged_key(K, names[1]), 'f0') or ''
  return string.sub(facts, -2) == ':1' and stream.sealed < stream.last
end

--[[
  hw_stream_publish: append staged batches, once for each (producer, sequence), in bounded steps.
  The first call records what belongs to the publish; each call moves a part of it, in order, as a write
  would, and the last one stores the reply. Call it again until it is done; each message is moved once,
  whichever client calls. Messages of a step have neighbouring offsets; writes of others may be between steps.
  When the sequence was published before, or is being published, the stagings named now are dropped; the
  reply is the first one, or the first publish continues. An unfinished publish of the same producer with
  another sequence is finished before this one begins.
  KEYS   1 the stream
  ARGV   1 producer   2 its sequence and, after a colon, a digest of the content if it has one; parts of a
         digest are joined by dots, and one in common shows that the content is the same
         3.. names of stagings, in order; none to continue
  Reply  { 1 when done, first offset, last offset, messages not sealed yet, 1 when it was a repeat,
           1 when the names need not be sent again }
         error HW_STALE <newest sequence> when the sequence is older than what is remembered
         error HW_REUSED <first> <last>, or HW_REUSED, when the sequence was published, or is being
         published, with other content; the stagings stay
         error HW_NO_STAGING <name> when one is missing; then nothing was done
]]
redis.register_function{
  function_name = 'hw_stream_publish',
  callback = function(keys, args)
    local K, producer = keys[1], args[1]
    local sequence, digest = sequence_and_digest(args[2])
    local names = {}
    for i = 3, #args do names[i - 2] = args[i] end
    local now = server_ms()
    local stream = complete_stream(K)
    local open = open_publish(K, producer)
    local ours, wait = open and open.sequence == sequence, false
    local missing = open and hold_stagings(K, producer, open)
    if missing then return redis.error_reply('HW_NO_STAGING ' .. missing) end
    if ours and not is_same_content(open.digest, digest) then return redis.error_reply('HW_REUSED') end
    local first, last = remembered_answer(K, producer, sequence, digest)
    if ours or first then
      for _, name in ipairs(names) do unstage(K, name) end
    end
    if not ours and first then return { 1, first, last, 0, 1, 1 } end
    if not open and last then return last end
    missing = not open and missing_staging(K, names)
    if missing then return redis.error_reply('HW_NO_STAGING ' .. missing) end
    if open or names[1] then stream = open_stream(K) end
    if open then
      drop_moved(K, producer, open)
    else
      ours, wait = true, better_sealed_first(K, names, stream)
      open = begin_publish(K, producer, sequence, digest, names, now)
      hold_stagings(K, producer, open)
    end
    local done = false
    if wait then
      save_publish(K, producer, open, now)
    else
      done = move_nodes(K, producer, open, stream, now)
      if done then finish_publish(K, producer, open, now) end
    end
    return {
      done and ours and 1 or 0, open.first, open.last, stream.last - stream.sealed, 0, ours and 1 or 0,
    }
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_stream_publishing: list the publishes that were begun and are not finished.
  KEYS   1 the stream
  Reply  producer, its sequence, ms since its last step, ...
]]
redis.register_function{
  function_name = 'hw_stream_publishing',
  callback = function(keys)
    local found, now = redis.call('HGETALL', keys[1] .. ':publishing'), server_ms()
    local reply = {}
    for i = 1, #found, 2 do
      local sequence, time = string.match(found[i + 1], '^(%d+):%d+:%d+:%d+:(%d+)')
      local n = #reply
      reply[n + 1], reply[n + 2], reply[n + 3] = found[i], tonumber(sequence), now - tonumber(time)
    end
    return reply
  end,
  flags = { 'no-writes' },
}

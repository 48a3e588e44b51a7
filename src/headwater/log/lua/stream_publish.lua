--[[
  Publishing: from the stagings beside a stream into it. See shared/16-staging.lua for the keys.
]]
-- What one step moves at most, so that no call stops the server for long.
local PUBLISH_NODES = 256
local PUBLISH_BYTES = 8388608

local function load_publish(K, producer)
  local text = redis.call('HGET', K .. ':publishing', producer)
  if not text then return nil end
  local sequence, first, last, index = string.match(text, '^(%d+):(%d+):(%d+):(%d+):')
  return {
    sequence = tonumber(sequence), first = tonumber(first), last = tonumber(last),
    index = tonumber(index),
  }
end

-- Returns a staging that cannot be published: it is not there, or belongs to a publish already.
local function missing_staging(K, names)
  for _, name in ipairs(names) do
    local facts = redis.call('HMGET', staged_key(K, name), 'n', 'begun', 'format')
    check_format(facts[3])
    if not facts[1] or facts[2] then return name end
  end
end

-- Notes which stagings belong to a publish; returns whether it would do better to wait: what is
-- to become nodes as it is should not meet leftovers in the tail, which its caller can seal.
local function begin_publish(K, producer, names, stream)
  for _, name in ipairs(names) do
    local S = staged_key(K, name)
    redis.call('HSET', S, 'begun', 1)
    redis.call('PERSIST', S)
    redis.call('RPUSH', publish_key(K, producer), name)
  end
  local facts = names[1] and redis.call('HGET', staged_key(K, names[1]), 'f0') or ''
  return string.sub(facts, -2) == ':1' and stream.sealed < stream.last
end

-- Moves the next nodes into the stream; returns whether none is left. Ends before a node that must
-- not wait in the tail behind small ones that came just before it: its caller seals those.
local function move_nodes(K, producer, open, stream, now)
  local P, nodes, bytes = publish_key(K, producer), 0, 0
  local clean = stream.sealed == stream.last
  while true do
    local name = redis.call('LINDEX', P, 0)
    if not name then return true end
    local S = staged_key(K, name)
    local n = tonumber(redis.call('HGET', S, 'n') or 0)
    while open.index < n do
      if nodes >= PUBLISH_NODES or bytes >= PUBLISH_BYTES then return false end
      local at = digits(open.index)
      local found = redis.call('HMGET', S, 'f' .. at, at)
      local count, time, newest, fit = string.match(found[1], '^(%d+):(%d*):(%d*):(%d)$')
      if clean and fit == '1' and stream.sealed < stream.last then return false end
      append_packed(K, stream, now, tonumber(count), tonumber(time), tonumber(newest), fit == '1',
        found[2])
      redis.call('HDEL', S, 'f' .. at, at)
      open.index, open.last = open.index + 1, stream.last
      nodes, bytes = nodes + 1, bytes + #found[2]
    end
    redis.call('UNLINK', S)
    redis.call('LPOP', P)
    open.index = 0
  end
end

-- A write of the same producer may have come in between with a later sequence: that stays newest.
local function finish_publish(K, producer, open, now)
  local newest = redis.call('HGET', K .. ':answers', producer)
  remember_answer(K, producer, open.sequence, open.first, open.last, now)
  if newest and tonumber(newest) > open.sequence then
    redis.call('HSET', K .. ':answers', producer, newest)
  end
  redis.call('HDEL', K .. ':publishing', producer)
end

local function save_publish(K, producer, open, now)
  redis.call('HSET', K .. ':publishing', producer, table.concat({ digits(open.sequence),
    digits(open.first), digits(open.last), digits(open.index), digits(now) }, ':'))
end

local function step_publish(K, producer, open, stream, now)
  local before = stream.last
  if open.last < open.first then open.first, open.last = before + 1, before end
  local done = move_nodes(K, producer, open, stream, now)
  if stream.last > before then
    redis.call('HSET', K, 'last', stream.last, 'time', stream.time)
    serve_all(K, stream, now)
  end
  if done then
    finish_publish(K, producer, open, now)
  else
    save_publish(K, producer, open, now)
  end
  return done
end

--[[
  hw_stream_publish: append what is staged, once for each (producer, sequence), in bounded steps.
  The first call notes what belongs to the publish; each call moves a part of it, in order, as a
  write would, and the last one notes the answer. Call it again until it is done: whoever does, a
  message is moved once. Messages of a step lie together; writes of others may lie between steps.
  When the sequence was published before, or is being published, what is named now is dropped; the
  reply is the first one, or the first publish goes on. An unfinished publish of the same
  producer with another sequence is finished before this one begins.
  KEYS   1 the stream
  ARGV   1 producer   2 its sequence   3.. names of stagings, in order; none to go on
  Reply  { 1 when done, first offset, last offset, messages not sealed yet, 1 when it was a repeat,
           1 when the names need not be sent again }
         error HW_STALE <newest sequence> when the sequence is older than what is remembered
         error HW_NO_STAGING <name> when one is not there; then nothing was done
]]
redis.register_function{
  function_name = 'hw_stream_publish',
  callback = function(keys, args)
    local K, producer, sequence = keys[1], args[1], tonumber(args[2])
    local names = {}
    for i = 3, #args do names[i - 2] = args[i] end
    local open, now = load_publish(K, producer), server_ms()
    local ours = open and open.sequence == sequence
    local first, last = remembered_answer(K, producer, sequence)
    if ours or first then
      for _, name in ipairs(names) do unstage(K, name) end
    end
    if not ours and first then return { 1, first, last, 0, 1, 1 } end
    if not open and last then return last end
    local missing = not open and missing_staging(K, names)
    if missing then return redis.error_reply('HW_NO_STAGING ' .. missing) end
    local stream, wait = (open or names[1]) and open_stream(K) or load_stream(K), false
    if not open then
      ours, open = true, { sequence = sequence, first = 1, last = 0, index = 0 }
      wait = begin_publish(K, producer, names, stream)
    end
    local done = false
    if wait then
      save_publish(K, producer, open, now)
    else
      done = step_publish(K, producer, open, stream, now)
    end
    return {
      done and ours and 1 or 0, open.first, open.last, stream.last - stream.sealed, 0, ours and 1 or 0,
    }
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_stream_publishing: the publishes that were begun and are not finished.
  KEYS   1 the stream
  Reply  producer, its sequence, ms since its last step, ...
]]
redis.register_function{
  function_name = 'hw_stream_publishing',
  callback = function(keys)
    local found, now = redis.call('HGETALL', keys[1] .. ':publishing'), server_ms()
    local reply = {}
    for i = 1, #found, 2 do
      local sequence, time = string.match(found[i + 1], '^(%d+):%d+:%d+:%d+:(%d+)$')
      local n = #reply
      reply[n + 1], reply[n + 2], reply[n + 3] = found[i], tonumber(sequence), now - tonumber(time)
    end
    return reply
  end,
  flags = { 'no-writes' },
}

--[[
  hw_stream_read: get the nodes and entries that hold given ranges of offsets.
  KEYS   1 the stream
  ARGV   1 byte limit, and after a colon that of their bytes unpacked, which may be left out; at least one
           node or entry is returned, however large
         2 "created:base:version" of a node that the caller still has, or ''
         3.. first offset, last offset, first offset, last offset, ...
  Reply  { first, last, sealed, created, last offset covered, nodes, entries, history }
         (see shared/20-collect.lua; the reply stops where the limit is reached)
]]
redis.register_function{
  function_name = 'hw_stream_read',
  callback = function(keys, args)
    local K, limits, kept = keys[1], args[1], args[2]
    local stream, history = load_stream(K, 'history')
    local bag = new_bag(stream, limits, kept)
    local covered = 0
    for i = 3, #args, 2 do
      local from, to = math.max(tonumber(args[i]), stream.first), tonumber(args[i + 1])
      covered = collect(K, stream, from, to, math.huge, bag)
      if covered < math.min(to, stream.last) then break end
    end
    return { stream.first, stream.last, stream.sealed, stream.created, covered, bag.nodes, bag.entries, history or '' }
  end,
  flags = { 'no-writes' },
}

--[[
  hw_stream_missing: note offsets that a reader found without node or entry, for hw_stream_info.
  KEYS   1 the stream
  ARGV   1 `created` as read   2.. first offset, last offset, ...
  Reply  1, or 0 when the stream was created again since
]]
redis.register_function{
  function_name = 'hw_stream_missing',
  callback = function(keys, args)
    local K, created = keys[1], args[1]
    local stream = load_stream(K)
    if stream.created ~= created then return 0 end
    for i = 2, #args, 2 do note_missing(K, stream, tonumber(args[i]), tonumber(args[i + 1])) end
    return 1
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_stream_nodes: get facts about sealed nodes, newest first, for clients that rewrite them.
  KEYS   1 the stream
  ARGV   1 highest last offset of interest   2 how many
  Reply  { first, sealed, created, { base, last, count, bytes, time, version, ... } }
]]
redis.register_function{
  function_name = 'hw_stream_nodes',
  callback = function(keys, args)
    local K, below, most = keys[1], args[1], args[2]
    local stream = load_stream(K)
    local from = digits(math.min(tonumber(below), stream.sealed))
    local found = redis.call('ZRANGE', K .. ':index', from, '-inf', 'BYSCORE', 'REV',
      'LIMIT', 0, most, 'WITHSCORES')
    return { stream.first, stream.sealed, stream.created, node_facts(found) }
  end,
  flags = { 'no-writes' },
}

--[[
  hw_stream_borders: cut a range of offsets into parts of about the same work.
  KEYS   1 the stream
  ARGV   1 first offset   2 last offset   3 nodes to a part   4 parts wanted at least
  Reply  { first, last, created, last offset of each part but the last, ... }: parts end where
         nodes do; their number is a multiple of the number wanted, or the number of nodes
  Cost   O(parts * log nodes)
]]
redis.register_function{
  function_name = 'hw_stream_borders',
  callback = function(keys, args)
    local K, first, last, part_nodes, wanted = keys[1], args[1], args[2], tonumber(args[3]), tonumber(args[4])
    local index, stream = K .. ':index', load_stream(K)
    local before = redis.call('ZCOUNT', index, '-inf', '(' .. first)
    local nodes = redis.call('ZCOUNT', index, first, last)
    local rounds = math.max(1, math.ceil(nodes / (part_nodes * wanted)))
    local parts = math.min(rounds * wanted, nodes)
    local reply = { stream.first, stream.last, stream.created }
    for part = 1, parts - 1 do
      local rank = before + math.floor(nodes * part / parts) - 1
      reply[#reply + 1] = tonumber(redis.call('ZRANGE', index, rank, rank, 'WITHSCORES')[2])
    end
    return reply
  end,
  flags = { 'no-writes' },
}

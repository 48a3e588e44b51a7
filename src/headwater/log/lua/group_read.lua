--[[
  hw_group_read: deliver messages to one member of a group, or register it as waiting.
  The first read creates the group. No message goes to two members, unless it is redelivered.

  KEYS   1 the stream
  ARGV   1 group   2 member   3 count   4 retry ms or ''   5 expire ms or ''
         6 where a new group starts: 'first', 'last' or an offset
         7 max pending, 0 for no limit, '' to leave it   8 stream for dead letters, '-' for none, '' to leave it
         9 waiter, '' when the caller never blocks   10 ms it will block now, 0 when it stops
         11 number of the waiter's read, the same in all its calls, also in one that is sent again because
            its reply was lost
         12 "created:base:version" of a node that the caller still has, or ''   13 byte limit, and after a
         colon that of their bytes unpacked, which may be left out
         14 '1' to have the first offset of the stream in the reply; may be left out
         15 '1' to have the group keep the order of each tag from now on; may be left out
         16 in a group that keeps order: offsets that the caller has and orders itself, "first-last first-last
         ..."; messages after them in their tags may be delivered to it, too; may be left out
         17 in a group that keeps order or has limits per key: tags to note; may be left out. `created` as read
         18 the first offset that was looked at, which is the one that the last reply named   19 the last one, 499
         above it at most   20 for each offset in between 8 bytes: the BLAKE2b digest of its tag; zeros for a message
         that waits for no other; 255 eight times for an offset without a message
  Reply  { claims, nodes, entries, created, sealed, stream last,
           ms until the next message is due or -1, 1 when messages wait to be buried,
           what was in the waiter's box or '',
           1 when there was too much to skip in one call: ask again,
           if it was asked for, or tags are noted: stream first,
           if tags are noted, because the group keeps order or has limits per key: the first offset whose tag has
           to be noted before there is more for the caller, or 0 }
         error HW_RANGE <first> <last> when the start is outside the stream
         error HW_GRAVE <stream> when dead letters are in that stream and new ones are to go elsewhere
]]
-- Returns where a new group starts, or nil and an error.
local function start_of(stream, start)
  if start == 'first' then return stream.first end
  if start == 'last' then return stream.last + 1 end
  if tonumber(start) <= stream.last + 1 then return tonumber(start) end
  return nil, redis.error_reply('HW_RANGE ' .. digits(stream.first) .. ' ' .. digits(stream.last))
end

local function register_waiter(K, G, name, stream, now, waiter, known, wish)
  redis.call('HSET', G, 'w:' .. waiter, wish)
  if not known or not redis.call('ZSCORE', G .. ':waiters', waiter) then
    redis.call('ZREM', G .. ':served', waiter)
    redis.call('ZADD', G .. ':waiters', redis.call('HINCRBY', G, 'turn', 1), waiter)
  else
    -- A member that has waited for a while checks the other waiters: another part of the line each time.
    forget_expired_waiters(G, now, now % redis.call('ZCARD', G .. ':waiters'))
  end
  note_waiting(K, stream, name)
end

-- Letters of one group are in one stream, which can only be changed while there are none.
local function letters_lie_elsewhere(G, group, wanted)
  local grave = redis.call('HGET', G, 'grave')
  if not grave or grave == wanted then return nil end
  return (group.burying ~= '' or redis.call('EXISTS', G .. ':dead') == 1) and grave
end

-- Returns what was put into the box of a waiter just when it stopped blocking.
local function empty_box(G, waiter)
  local text
  repeat
    text = redis.call('LPOP', box_key(G, waiter))
  until text ~= 'poke'
  return text or ''
end

-- A full server must still deliver: only messages that were read and acknowledged can be evicted.
redis.register_function{
  function_name = 'hw_group_read',
  callback = function(keys, args)
    local K, name, member, count, retry, expire = keys[1], args[1], args[2], args[3], args[4], args[5]
    local start, max_pending, dead_letters = args[6], args[7], args[8]
    local waiter, wait_ms, read_number = args[9], tonumber(args[10]), args[11]
    local kept, limits, with_first, ordered = args[12], args[13], args[14] == '1', args[15] == '1'
    local owned, notes = args[16], args[17]
    local G = group_key(K, name)
    local stream, now = load_stream(K), server_ms()
    local group
    if waiter == '' then
      group = open_group(G, stream)
    else
      group = open_group(G, stream, 'w:' .. waiter)
    end
    if not group then
      local next_offset, fault = start_of(stream, start)
      if fault then return fault end
      -- It may be left over from a group of an earlier stream.
      if not free_group(K, name) then
        return { {}, {}, {}, stream.created, stream.sealed, stream.last, -1, 0, '', 1, with_first and stream.first or nil }
      end
      create_group(K, name, stream, next_offset, now)
      group = load_group(G, stream)
    end
    book_group(G, group)
    local bury, target = 0, dead_letters == '-' and '' or dead_letters
    if dead_letters ~= '' and target ~= group.dead_letters then
      local grave = target ~= '' and letters_lie_elsewhere(G, group, target)
      if grave then return redis.error_reply('HW_GRAVE ' .. grave) end
      -- Messages that have expired must be dropped when dead letters are turned off.
      bury = 1
      change(group, 'dead_letters', target)
    end
    if max_pending ~= '' then
      local limit = tonumber(max_pending)
      if group.max_pending < 0 then limit = -1 - limit end
      if limit ~= group.max_pending then change(group, 'max_pending', limit) end
    end
    if ordered and not group.ordered then
      if not group.noted then lanes.start(G, group) end
      change(group, 'ordered', '1')
      change(group, 'draining', '')
      group.ordered, group.draining, group.noted = true, false, true
    end
    if group.abandoned then
      redis.call('ZADD', K .. ':positions', 0, name)
      change(group, 'abandoned', '')
    end
    save_group(G, group)
    local bag = new_bag(stream, limits, kept)
    if group.noted then
      bag.owned = lanes.owned(owned or '')
      if notes then lanes.note(G, group, stream, args, 17, now) end
    end
    redis.call('ZADD', G .. ':members', now, member)
    local known = group.wish and string.match(group.wish, '%d*$') == read_number
    local claims, boxed, unfinished = {}, known and empty_box(G, waiter) or '', false
    if boxed == '' then
      take_back_old_boxes(K, name, group, now)
      local _
      claims, _, unfinished =
        take(K, G, stream, group, now, tonumber(count), tonumber(retry), tonumber(expire), bag)
    end
    local due
    if #claims == 0 and boxed == '' then
      if group.draining or group.noted and group.pending > 0 then
        local changed = lanes.look_after(G, group)
        unfinished = unfinished or changed and group.pending > 0 and group.due <= now
      end
      due = flights.next_look(G, stream, group, now)
      if wait_ms > 0 and not unfinished then
        if group.look then due = flights.turn(G, group, due, waiter) end
        if group.look and due then wait_ms = math.min(wait_ms, math.max(due - now, 1)) end
        register_waiter(K, G, name, stream, now, waiter, known,
          table.concat({ digits(now + wait_ms), count, retry, expire, read_number }, ':'))
      elseif known then
        forget_waiter(G, waiter)
      end
    else
      -- Whatever fails from here on, the reader gets what was taken.
      if known then afterwards(forget_waiter, G, waiter) end
      serve(K, name, stream, now)
    end
    if group.dead_letters ~= '' then
      local waiting = redis.pcall('EXISTS', G .. ':expired')
      bury = (group.burying ~= '' or waiting == 1) and 1 or 0
    end
    return {
      claims, bag.nodes, bag.entries, stream.created, stream.sealed, stream.last,
      due and group.max_pending >= 0 and math.max(due - now, 0) or -1, bury, boxed, unfinished and 1 or 0,
      -- The reply ends before the first nil.
      (with_first or group.noted) and stream.first or nil,
      group.noted and (group.look and 0 or lanes.unknown(G, stream, group)) or nil,
    }
  end,
  flags = { 'allow-oom' },
}

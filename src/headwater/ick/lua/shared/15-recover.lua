--[[
  Recovery on a shard when a function stops half-way: one of its commands failed, and functions do not roll
  back. Each function adds a member to its new place before it removes it from the old one, so none is lost.
  The members that it moved are noted, and their places are corrected at once, by other commands if one is
  denied (see store/lua/shared/40-fallbacks.lua); if that fails as well, by the next call on this shard that
  is allowed to. See 20-channel.lua for the places.
]]
-- Lists of the members that this call moves: list, place of the first, distance to the next, ...
local moved, moved_count = {}, 0
-- Members whose places are still to be corrected, by shard.
local unmended = {}

local function note_moved(list, first, distance)
  local n = moved_count
  moved[n + 1], moved[n + 2], moved[n + 3] = list, first, distance
  moved_count = n + 3
end

local function moved_members()
  local members = {}
  for n = 1, moved_count, 3 do
    local list, first, distance = moved[n], moved[n + 1], moved[n + 2]
    for i = first, #list, distance do members[#members + 1] = list[i] end
  end
  return members
end

-- Returns those of some members for which `is_meant` is true of their place in the list.
local function chosen(members, is_meant)
  local found = {}
  for i, member in ipairs(members) do
    if is_meant(i) then found[#found + 1] = member end
  end
  return found
end

local function mend_some(S, members, now)
  local ready, since = redis.call('ZMSCORE', S .. ':ready', unpack(members)), redis.call('ZMSCORE', S .. ':since', unpack(members))
  local later, wish = redis.call('ZMSCORE', S .. ':later', unpack(members)), redis.call('ZMSCORE', S .. ':wish', unpack(members))
  local held, made = redis.call('ZMSCORE', S .. ':held', unpack(members)), redis.call('HMGET', S .. ':made', unpack(members))
  for _, member in ipairs(chosen(members, function(i) return ready[i] and not since[i] end)) do
    add_members(S .. ':since', { now, member })
  end
  -- The time of a member without an entry in S:later has come.
  for _, member in ipairs(chosen(members, function(i) return wish[i] and not later[i] and not ready[i] end)) do
    add_members(S .. ':later', { now, member })
  end
  local function remove(set, is_over)
    local over = chosen(members, is_over)
    if #over > 0 then remove_members(S .. set, over) end
  end
  remove(':since', function(i) return since[i] and not ready[i] end)
  remove(':later', function(i) return later[i] and (ready[i] or not wish[i]) end)
  remove(':wish', function(i) return wish[i] and ready[i] end)
  local over = chosen(members, function(i) return made[i] and not held[i] end)
  if #over > 0 then redis.call('HDEL', S .. ':made', unpack(over)) end
end

-- Ends a lease under which nothing is reserved, and corrects the places of members.
local function mend(S, members)
  local lease = redis.call('HMGET', S, 'holder', 'token')
  if (lease[1] or '') ~= '' and redis.call('ZCARD', S .. ':held') == 0 then
    set_fields(S, { 'holder', '', 'until', 0, 'done', lease[2] })
  end
  local now = server_ms()
  for i = 1, #members, ICK_ROWS do
    mend_some(S, { unpack(members, i, math.min(i + ICK_ROWS - 1, #members)) }, now)
  end
end

-- Runs a function on a shard; when it fails, the places of the members that it moved are corrected.
local function on_shard(S, work, ...)
  if unmended[S] then
    mend(S, unmended[S])
    unmended[S] = nil
  end
  moved_count = 0
  local fine, reply = pcall(work, S, ...)
  if fine then return reply end
  local members = moved_members()
  if not pcall(mend, S, members) then unmended[S] = members end
  return type(reply) == 'table' and reply or redis.error_reply('ERR ' .. tostring(reply))
end

--[[
  Changes that can be taken back. A function does not roll back by itself when one of its calls fails
  half-way: a right was taken away, or a key has the wrong type. So whatever changes messages notes
  here how that is undone, and a call either does all of its work or none of it:

    read and change, noting each undo ──▶ save the counts ──▶ done; what is unused now is deleted
                  │ a call fails                │ fails
                  └────────────▶ take back, the newest change first ◀──┘

  One denied command does not hinder taking back: whatever a call may have changed before it met that
  command has a second way (see store/lua/shared/40-second-ways.lua). Should taking back fail all the
  same, the rest of it is remembered together with the counts, and is done by the next call on this
  queue that is allowed to. Where the counts are others by then, the queue is not the same any more: it
  was flushed, or repaired, or went on elsewhere; then the rest is dropped. Waiters and their boxes are not noted: a name in a box counts only as long
  as its bundle is there, and a waiter ends by itself.
]]
-- What takes back the changes of this call: for each a kind, a key, and what to write there. The table
-- is used again by the next call, because tables that grow cost: `noted` is how much of it counts.
local undos, noted = {}, 0
-- Of a queue, by its key: what could not be taken back, and how much; texts of bundles that could not
-- be deleted; whether consumers wait although there is something for them.
local unfinished, unused, unserved = {}, {}, {}

local function put_first(key, texts, count)
  local back = {}
  for i = count, 1, -1 do back[#back + 1] = texts[i] end
  for i = 1, #back, 1000 do redis.call('LPUSH', key, unpack(back, i, math.min(i + 999, #back))) end
end

local UNDO = {
  zadd = function(key, time, name) add_members(key, { time, name }) end,
  zadds = add_members,
  zrem = function(key, name) remove_members(key, { name }) end,
  zrems = remove_members,
  hset = function(key, field, text) set_fields(key, { field, text }) end,
  hdel = function(key, field) redis.call('HDEL', key, field) end,
  lset = function(key, text) redis.call('LSET', key, 0, text) end,
  unlink = function(key) redis.call('UNLINK', key) end,
  -- So many were put at the end of a list.
  cut_end = cut_end,
  -- The first so many texts were taken off a list.
  put_first = put_first,
  -- The same, when these were read in several steps: texts, how many of them, texts, how many, ...
  put_steps = function(key, steps)
    for i = #steps, 2, -2 do put_first(key, steps[i - 1], steps[i]) end
  end,
}

local function note_undo(kind, key, a, b)
  local n = noted
  undos[n + 1], undos[n + 2], undos[n + 3], undos[n + 4] = kind, key, a, b
  noted = n + 4
end

-- Takes changes back, the newest first. When one cannot be, returns how much of the list is left, and why.
local function take_back(list, count)
  for n = count, 4, -4 do
    local fine, fault = pcall(UNDO[list[n - 3]], list[n - 2], list[n - 1], list[n])
    if not fine then return n, fault end
  end
  return 0
end

-- Empties the texts of bundles that are gone and could not be deleted.
local function empty_texts(K, numbers, first, last)
  for i = first, last do redis.pcall('HSET', K .. ':bundles', numbers[i], '') end
end

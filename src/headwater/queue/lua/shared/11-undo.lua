--[[
  Undoing changes. A function does not roll back by itself when one of its commands fails half-way: a right
  was revoked, or a key has the wrong type. So every change of messages records here how to undo it, and a
  call either does all of its work or none of it:

    read and change, recording each undo ──▶ save the counts ──▶ done; unused texts are deleted
                  │ a command fails                │ fails
                  └────────────▶ undo, the newest change first ◀──┘

  One denied command does not prevent the undo: for each change that a call may have made before it met that
  command there is a second command (see store/lua/shared/40-fallbacks.lua). If the undo fails all the same,
  the rest of it is kept together with the counts, and is done by the next call on this queue that is allowed
  to. If the counts are different by then, the queue was flushed, repaired or used elsewhere, and the rest is
  dropped. Waiters and their boxes are not recorded: a name in a box counts only while its bundle is there, and
  a waiter ends by itself.
]]
-- The undo steps of this call: for each a kind, a key, and what to write there. The table is reused by the
-- next call, because growing a table is slow: `noted` is how much of it counts.
local undos, noted = {}, 0
-- By the key of a queue: what could not be undone, and how much; texts of bundles that could not be deleted;
-- whether consumers wait although there is something for them.
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
  -- This many texts were put at the end of a list.
  cut_end = cut_end,
  -- These first texts were taken off a list.
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

-- Undoes changes, the newest first. When one cannot be undone, returns how much of the list is left, and why.
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

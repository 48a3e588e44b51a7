--[[
  Packs: many messages in one string, so that to keep and to send them takes a few calls, however
  many they are. A server's Lua pays for every byte of a string that it makes, so they are moved as
  they are wherever that can be. Packs may follow each other. There are two kinds.

  A *run* is messages of one push. All its numbers are big-endian:

    'r', count (2 bytes), base (4), first (double), life (double),
    then for each message where it ends (4 bytes),
    then the values as an array of MessagePack: 0xdc, count (2 bytes), and 0xc6, size (4), value each

  The i-th message has the number first + i - 1; all have the same end of life, 0 for none. The ends
  count from where a message before the first began, which is `base`: so a run is divided by cutting
  its string, without looking at its messages one by one.

  *Entries* carry their own numbers, so they may come from anywhere: an array of MessagePack, in
  which '' has left. When they have a deadline each, it is { deadlines, entries }.
]]
local RUN = 114
local RUN_FORM, RUN_HEAD = '>BI2I4dd', 23
local ARRAY_FORM, VALUE_FORM = '>BI2', '>BI4'

-- Forms of so many ends; each is written once, because many calls need one.
local ends_forms = {}

local function ends_form(count)
  local form = ends_forms[count]
  if not form then
    form = '>' .. string.rep('I4', count)
    ends_forms[count] = form
  end
  return form
end

local function is_run(element)
  return string.byte(element, 1) == RUN
end

-- What stands before the values of a run.
local function head_of_run(count, base, first, life, ends)
  return struct.pack(RUN_FORM, RUN, count, base, first, life) .. ends .. struct.pack(ARRAY_FORM, 220, count)
end

local function pack_run(first, life, values, from, to)
  local ends, last, parts, count = {}, 0, {}, to - from + 1
  for i = 1, count do
    local value = values[from + i - 1]
    last = last + 5 + #value
    ends[i], parts[2 * i], parts[2 * i + 1] = last, struct.pack(VALUE_FORM, 198, #value), value
  end
  parts[1] = head_of_run(count, 0, first, life, struct.pack(ends_form(count), unpack(ends)))
  return table.concat(parts)
end

-- Reads the head of the run that begins at a place: its count, first, life, where it ends, its base
-- and where its values begin. Returns nil where there is none, or its parts do not fit each other.
local function read_run(text, at)
  if #text < at + RUN_HEAD + 6 then return nil end
  local kind, count, base, first, life = struct.unpack(RUN_FORM, text, at)
  local values = at + RUN_HEAD + 4 * count + 3
  if kind ~= RUN or count < 1 or count > PARCEL_MESSAGES or #text < values - 1
    or not (first >= 1e15 and first < 1e16 and life >= 0) then return nil end
  local last = struct.unpack('>I4', text, values - 7)
  local stop = values - 1 + last - base
  if last < base or stop > #text then return nil end
  return count, first, life, stop, base, values
end

-- Gives a part of a run, from one message to another.
local function part_of_run(run, from, to)
  local _, first, life, _, base, values = read_run(run, 1)
  local before = from > 1 and struct.unpack('>I4', run, RUN_HEAD + 4 * from - 7) or base
  local last = struct.unpack('>I4', run, RUN_HEAD + 4 * to - 3)
  return head_of_run(to - from + 1, before, first + from - 1, life,
    string.sub(run, RUN_HEAD + 4 * from - 3, RUN_HEAD + 4 * to))
    .. string.sub(run, values + before - base, values + last - base - 1)
end

-- ── Entries ───────────────────────────────────────────────────────────────────────────────────

-- What stands between the number and the value of an entry.
local function mark_of(life)
  return life > 0 and 't' .. string.format('%013.0f', life) or 'm'
end

local function is_entry(entry)
  if not string.find(entry, '^%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d[mt]') then return false end
  return string.byte(entry, 17) == 109 or string.find(entry, '^%d%d%d%d%d%d%d%d%d%d%d%d%d', 18) ~= nil
end

local function pack_entries(entries, deadlines)
  return cmsgpack.pack(deadlines and { deadlines, entries } or entries)
end

-- Packs elements of a list.
local function pack_elements(elements)
  local packs, entries = {}, {}
  for i = 1, #elements do
    if not is_run(elements[i]) then
      entries[#entries + 1] = elements[i]
    else
      if #entries > 0 then packs[#packs + 1], entries = pack_entries(entries), {} end
      packs[#packs + 1] = elements[i]
    end
  end
  if #entries > 0 then packs[#packs + 1] = pack_entries(entries) end
  return table.concat(packs)
end

-- ── Opening ───────────────────────────────────────────────────────────────────────────────────

-- Adds the messages of a run to entries; returns where the run ends, or nil when it cannot be read.
local function open_run(text, at, found)
  local count, first, life, stop, base, begin = read_run(text, at)
  if not count then return nil end
  local mark, ends = mark_of(life), { struct.unpack(ends_form(count), text, at + RUN_HEAD) }
  for i = 1, count do
    if ends[i] < base + 5 then return nil end
    local past = begin + ends[i] - base
    found[#found + 1] = digits(first + i - 1) .. mark .. string.sub(text, begin + 5, past - 1)
    begin, base = past, ends[i]
  end
  return stop
end

-- Adds packed entries to others; returns where they end, or nil, and their deadlines if they vary.
-- An entry that cannot be read is as if it had left.
local function open_entries(text, at, found)
  local fine, stop, entries = pcall(cmsgpack.unpack_one, text, at - 1)
  if not fine or type(entries) ~= 'table' then return nil end
  local deadlines
  if type(entries[1]) == 'table' then deadlines, entries = entries[1], entries[2] end
  if type(entries) ~= 'table' then return nil end
  for i = 1, math.min(table.maxn(entries), PARCEL_MESSAGES) do
    found[#found + 1] = type(entries[i]) == 'string' and entries[i] or ''
  end
  return stop < 0 and #text or stop, deadlines
end

-- Opens packs: gives all their entries, '' for those that have left, and deadlines if they vary.
-- What is behind a place that cannot be read is not there.
local function open_packs(text)
  local found, deadlines, at = {}, nil, 1
  while at and at <= #text do
    local stop
    if string.byte(text, at) == RUN then
      stop = open_run(text, at, found)
    else
      stop, deadlines = open_entries(text, at, found)
    end
    at = stop and stop + 1
  end
  return found, deadlines
end

-- Gives what is in packs as it would lie in a list, without what has left; and how many messages.
local function elements_of(text)
  local found, at, total = {}, 1, 0
  while at and at <= #text do
    local count, _, _, stop = read_run(text, at)
    if count then
      found[#found + 1], total = string.sub(text, at, stop), total + count
    else
      local entries = {}
      stop = open_entries(text, at, entries)
      for _, entry in ipairs(entries) do
        if entry ~= '' then found[#found + 1], total = entry, total + 1 end
      end
    end
    at = stop and stop + 1
  end
  return found, total
end

--[[
  The string of a bundle. It begins with the number of its first message, as 16 digits, and a letter:

    number m value                     one message
    number t life value                one message that has an end of life: 13 digits, ms
    number p count life size values    messages of one push: their numbers are consecutive, and they
                                       have the same end of life, 0 for none

  With the letters c, f and j instead, each value ends with its checksum: the CRC-32 of what is before
  it, 4 bytes, little-endian. The pushing client computes it and the popping one checks it; here it is part of
  the value. If a value has headers, they follow it, as a map of MessagePack, then their size, 2 bytes,
  little-endian, then the checksum of all that with every bit reversed, by which headers are recognised.

  Count is one byte, life a double, size has 4 bytes, all big-endian. Values are an array of
  MessagePack, which clients open in one step: 0xdc and their count (2 bytes), then for each 0xc6, its
  size (4 bytes) and itself. These three forms are in lists and are sent to consumers. In a bundle that waits
  for a time several of them may be *joined*: then the bundle is an array of MessagePack that contains them,
  after another array with a deadline for each if they differ.

  In a server, Lua pays for every string that it creates. So messages that were pushed together are kept and
  delivered as one string, and divided by cutting it, without creating their values.
]]
-- The letters, as bytes: m, t, p; and those of values with a checksum: c, f, j. Between one of these
-- and any other letter at least two bits differ.
local ONE, MORTAL, PACKED = 109, 116, 112
local ONE_CHECKED, MORTAL_CHECKED, PACKED_CHECKED = 99, 102, 106
-- Where the part after the letter begins; and, in a packed bundle, the values.
local BODY, VALUES = 18, 34
local PACKED_FORM, VALUE_FORM = '>BdI4BI2', '>BI4'
local VALUE_HEAD = 5
-- How an array and a value of MessagePack begin.
local ARRAY, VALUE = 220, 198

-- ── In lists ──────────────────────────────────────────────────────────────────────────────────

-- Returns what is between the number and the value of one message.
local function mark_of(life, checked)
  if life == 0 then return checked and 'c' or 'm' end
  return (checked and 'f' or 't') .. string.format('%013.0f', life)
end

-- Returns what is before the values of a packed bundle; `size` is theirs.
local function packed_head(first, checked, count, life, size)
  return digits(first) .. (checked and 'j' or 'p') .. struct.pack(PACKED_FORM, count, life, size, ARRAY, count)
end

-- Makes a bundle out of values that were pushed together.
local function pack_bundle(first, life, checked, values, from, to)
  local parts, size, count = {}, 0, to - from + 1
  for i = 1, count do
    local value = values[from + i - 1]
    parts[2 * i], parts[2 * i + 1] = struct.pack(VALUE_FORM, VALUE, #value), value
    size = size + VALUE_HEAD + #value
  end
  parts[1] = packed_head(first, checked, count, life, size)
  return table.concat(parts)
end

-- Reads a bundle of a list: returns how many messages it has, and the end of their life. Returns nil
-- when it cannot be read.
local function read_bundle(text)
  local digit, kind = string.byte(text, 16, 17)
  if not kind or digit < 48 or digit > 57 then return nil end
  if kind == ONE or kind == ONE_CHECKED then return 1, 0 end
  if kind == MORTAL or kind == MORTAL_CHECKED then
    local life = string.match(text, '^%d%d%d%d%d%d%d%d%d%d%d%d%d', BODY)
    return life and 1, tonumber(life)
  end
  if (kind ~= PACKED and kind ~= PACKED_CHECKED) or #text < VALUES - 1
      or not string.find(text, '^%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d') then
    return nil
  end
  local count, life, size, _, again = struct.unpack(PACKED_FORM, text, BODY)
  if count < 1 or count > BUNDLE_MESSAGES or again ~= count or not (life >= 0 and life < math.huge) or #text ~= VALUES - 1 + size then return nil end
  return count, life
end

-- Divides a packed bundle; returns one of its first `part` messages, and one of the others. Returns
-- nil when a size in it is damaged, so that nothing is changed half-way.
local function split_bundle(text, part)
  local first, count, life, size = tonumber(string.sub(text, 1, 16)), struct.unpack(PACKED_FORM, text, BODY)
  local cut = VALUES
  for _ = 1, part do
    if cut + VALUE_HEAD - 1 > #text then return nil end
    cut = cut + VALUE_HEAD + struct.unpack('>I4', text, cut + 1)
  end
  if cut > #text + 1 then return nil end
  local before, checked = cut - VALUES, string.byte(text, 17) == PACKED_CHECKED
  return packed_head(first, checked, part, life, before) .. string.sub(text, VALUES, cut - 1),
    packed_head(first + part, checked, count - part, life, size - before) .. string.sub(text, cut)
end

-- Adds the messages of a bundle to others, each as a bundle of its own. Adds none that cannot be read.
local function add_messages(text, messages)
  local count, life = read_bundle(text)
  local kind = string.byte(text, 17)
  if kind ~= PACKED and kind ~= PACKED_CHECKED then
    messages[#messages + 1] = count and text
    return
  end
  local first, mark, at = tonumber(string.sub(text, 1, 16)), mark_of(life or 0, kind == PACKED_CHECKED), VALUES
  for i = 1, count or 0 do
    local size = #text >= at + 4 and struct.unpack('>I4', text, at + 1) or math.huge
    if at + VALUE_HEAD + size - 1 > #text then return end
    messages[#messages + 1] = digits(first + i - 1) .. mark .. string.sub(text, at + VALUE_HEAD, at + VALUE_HEAD + size - 1)
    at = at + VALUE_HEAD + size
  end
end

-- ── With a time ───────────────────────────────────────────────────────────────────────────────

-- Makes one bundle out of some; with deadlines these are single messages, and have one each.
local function join_bundles(texts, deadlines)
  if #texts == 1 and not deadlines then return texts[1] end
  if deadlines then return cmsgpack.pack(deadlines, texts) end
  return cmsgpack.pack(texts)
end

-- Reads a MessagePack value that begins after some bytes; returns it and where it ends, or nil.
local function unpack_at(text, at)
  local fine, stop, found = pcall(cmsgpack.unpack_one, text, at)
  if fine then return found, stop end
end

-- Returns the bundles that were joined, and a deadline for each if they have one. If the text was cut off,
-- those before the cut are returned.
local function part_bundles(text)
  local sign = string.byte(text, 1)
  if sign and sign >= 48 and sign <= 57 then return { text } end
  local found, at = unpack_at(text, 0)
  local texts, begin, deadlines = {}, 0, nil
  if type(found) == 'table' and type(found[1]) == 'number' then
    deadlines, begin = found, at
    found = unpack_at(text, begin)
  end
  if type(found) ~= 'table' then
    found, at = {}, begin + (string.byte(text, begin + 1) == ARRAY and 3 or 1)
    while at and at >= 0 and at < #text do
      found[#found + 1], at = unpack_at(text, at)
    end
  end
  for i = 1, math.min(table.maxn(found), BUNDLE_MESSAGES) do
    if type(found[i]) == 'string' then texts[#texts + 1] = found[i] end
  end
  return texts, deadlines and #deadlines == #texts and deadlines or nil
end

-- Returns the messages of a bundle, each as a bundle of its own, and their deadlines if they differ.
local function open_bundle(text)
  local texts, deadlines = part_bundles(text)
  local messages = {}
  for i = 1, #texts do
    local kind = string.byte(texts[i], 17)
    if kind == ONE or kind == ONE_CHECKED then
      messages[#messages + 1] = texts[i]
    else
      add_messages(texts[i], messages)
    end
  end
  -- With deadlines, each is one message. If one cannot be read, it is unknown which one it was.
  return messages, deadlines and #messages == #texts and deadlines or nil
end

--[[
  Checking and repairing a store. Clients know, for each data type, what is right. The functions here do only
  what clients cannot do: read several keys of an object at one moment, and change it on the condition that it
  is still as it was seen.

  Both run commands that their caller names, with the caller's own rights. A command is the number of its
  words, then its words.
]]
-- Parses the command that begins at a place; returns its words, and the place after it.
local function command_at(args, place)
  local words, count = {}, tonumber(args[place])
  for i = 1, count do words[i] = args[place + i] end
  return words, place + count + 1
end

local function denied(words)
  return redis.error_reply('HW_DENIED ' .. words[1])
end

-- Formats a reply, so that two of them can be compared.
local function spelled(reply)
  if type(reply) == 'number' then return ':' .. digits(reply) end
  if type(reply) == 'string' then return '$' .. #reply .. ':' .. reply end
  if type(reply) ~= 'table' then return '-' end
  if reply.ok then return spelled(reply.ok) end
  if reply.err then return '!' end
  local parts = { '*' .. #reply .. ':' }
  for i = 1, #reply do parts[i + 1] = spelled(reply[i]) end
  return table.concat(parts)
end

--[[
  hw_scrub_read: run commands that only read the keys of one object, as one step.
  KEYS   1 the object
  ARGV   1.. commands: number of words, words, ...
  Reply  the reply to each, in order; an error where a key has another type, or a value another form
         error HW_DENIED <command> when the caller may not run one of them
]]
redis.register_function{
  function_name = 'hw_scrub_read',
  callback = function(_, args)
    local replies, place = {}, 1
    while place <= #args do
      local words
      words, place = command_at(args, place)
      local reply = redis.pcall(unpack(words))
      -- A key of another type, or an invalid id, is a finding; a missing right is an error.
      if type(reply) == 'table' and reply.err and not redis.acl_check_cmd(unpack(words)) then
        return denied(words)
      end
      replies[#replies + 1] = reply
    end
    return replies
  end,
  flags = { 'no-writes' },
}

--[[
  hw_scrub_repair: change one object, on the condition that it is still as it was seen.
  All conditions, and the rights to make all changes, are checked before the first change is made.
  KEYS   1 the object
  ARGV   1 number of conditions
         2.. conditions: a command and its reply as text; then changes: commands
  Reply  1 when it was changed, 0 when a condition no longer holds
         error HW_DENIED <command> when the caller may not make one of the changes
]]
redis.register_function{
  function_name = 'hw_scrub_repair',
  callback = function(_, args)
    local conditions, place = tonumber(args[1]), 2
    for _ = 1, conditions do
      local words
      words, place = command_at(args, place)
      if spelled(redis.pcall(unpack(words))) ~= args[place] then return 0 end
      place = place + 1
    end
    local changes = {}
    while place <= #args do
      local words
      words, place = command_at(args, place)
      if not redis.acl_check_cmd(unpack(words)) then return denied(words) end
      changes[#changes + 1] = words
    end
    for _, words in ipairs(changes) do redis.call(unpack(words)) end
    return 1
  end,
  flags = { 'allow-oom' },
}

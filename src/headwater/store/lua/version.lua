--[[
  hw_version: get the version of this library.
  KEYS   none
  Reply  "<version of the contract>:<release that it comes from>:<digest of the source>:<format that it writes>"
]]
redis.register_function{
  function_name = 'hw_version',
  callback = function() return LIBRARY end,
  flags = { 'no-writes', 'allow-stale', 'allow-oom' },
}

--[[
  hw_rights: list the commands that the caller may not run on a key.
  A function that is denied a command half-way leaves a half-done change, so clients ask before they call any
  other function.
  KEYS   none
  ARGV   1 a key like those of the store   2.. commands, as access rules name them: "hset", "memory|usage"
  Reply  the commands that are denied
]]
redis.register_function{
  function_name = 'hw_rights',
  callback = function(_, args)
    local key, denied = args[1], {}
    for i = 2, #args do
      local command, sub = string.match(args[i], '^([^|]+)|?(.*)$')
      local allowed
      if command == 'zunionstore' then
        -- The server reads the number of keys without checking that it was given, and would crash.
        allowed = redis.acl_check_cmd(command, key, 1, key)
      elseif sub == '' then
        allowed = redis.acl_check_cmd(command, key)
      else
        allowed = redis.acl_check_cmd(command, sub, key)
      end
      if not allowed then denied[#denied + 1] = args[i] end
    end
    return denied
  end,
  flags = { 'no-writes', 'allow-stale', 'allow-oom' },
}

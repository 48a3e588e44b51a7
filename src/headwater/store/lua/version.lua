--[[
  hw_version: the version of this library.
  KEYS   none
  Reply  "<version>:<digest of the source>"
]]
redis.register_function{
  function_name = 'hw_version',
  callback = function() return LIBRARY end,
  flags = { 'no-writes', 'allow-stale', 'allow-oom' },
}

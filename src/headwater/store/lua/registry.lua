--[[
  hw_registry_add, hw_registry_remove: add or remove names of objects of a kind.
  The registry is in a slot of its own, so this call is separate from the write that creates an object. Every
  client repeats it with its first write, which corrects a lost call.
  KEYS   1 the registry's set
  ARGV   1.. names
  Reply  how many were new (add) or known (remove)
]]
redis.register_function('hw_registry_add', function(keys, names)
  local registry, added = keys[1], 0
  for _, name in ipairs(names) do added = added + redis.call('SADD', registry, name) end
  return added
end)

redis.register_function{
  function_name = 'hw_registry_remove',
  callback = function(keys, names)
    local registry, removed = keys[1], 0
    for _, name in ipairs(names) do removed = removed + redis.call('SREM', registry, name) end
    return removed
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_registry_list: list every name in the registry.
  KEYS   1 the registry's set
  Reply  names, in no order
]]
redis.register_function{
  function_name = 'hw_registry_list',
  callback = function(keys) return redis.call('SMEMBERS', keys[1]) end,
  flags = { 'no-writes' },
}

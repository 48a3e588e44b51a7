--[[
  hw_group_limit: limit how many messages of a group are in flight and how fast they are delivered.
  The limits apply to all members from their next read on.
  KEYS   1 the stream
  ARGV   1 group   2 the limits, as the field `limits` has them (store/lua/shared/50-limits.lua); '' for none
  Reply  the limits until now, '' for none
         error HW_NO_GROUP
]]
redis.register_function{
  function_name = 'hw_group_limit',
  callback = function(keys, args)
    local K, name, text = keys[1], args[1], args[2]
    local G, stream, now = group_key(K, name), load_stream(K), server_ms()
    local group = open_group(G, stream)
    if not group then return no_group() end
    local before = redis.call('HGET', G, 'limits') or ''
    if before == text then return before end
    book_group(G, group)
    local counted, noted = group.limits and group.limits.most, group.noted
    group.limits = limits.of(text)
    if not counted and group.limits and group.limits.most then flights.count_before(G, group, now) end
    -- Until nothing is parked any more, tags are noted as before.
    if noted and not lanes.noted(group) then
      group.draining = true
      change(group, 'draining', '1')
    elseif group.draining and (group.ordered or lanes.limited(group)) then
      group.draining = false
      change(group, 'draining', '')
    end
    group.noted = lanes.noted(group)
    if group.noted and not noted then lanes.start(G, group) end
    redis.call('HSET', G, 'limits', text)
    save_group(G, group)
    local terms = group.limits or {}
    if not terms.most then redis.pcall('UNLINK', G .. ':flying') end
    if not terms.rate_of_key then redis.pcall('UNLINK', G .. ':buckets') end
    if group.noted then
      afterwards(lanes.hurry, G, group, 0, lanes.most)
      afterwards(lanes.look_after, G, group)
    end
    serve(K, name, stream, now)
    return before
  end,
  flags = { 'allow-oom' },
}

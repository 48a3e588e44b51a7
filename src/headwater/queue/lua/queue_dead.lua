--[[
  hw_queue_bring_back, hw_queue_discard: what becomes of dead letters.
  Brought back, a message is as if it were pushed now, under its old number, and its attempts begin
  anew. Discarded, it is gone.

  KEYS   1 the queue
  ARGV   1 messages at most
         2.. head of a parcel, places in it ("1,5" or "*"), ...; none: the oldest parcels
  Reply  { messages, 1 when there are more to do }
]]
local DEAD_STEPS = 64

local function settle_dead(queue, parcel, places, most, keep)
  local score, entries = find_parcel(queue, 'dead', parcel)
  if not score then return 0 end
  if not entries then
    open_parcel(queue, 'dead', parcel)
    return 0
  end
  local chosen = {}
  for _, place in ipairs(places_of(places, #entries)) do
    if #chosen < most and entries[place] and entries[place] ~= '' then
      chosen[#chosen + 1], entries[place] = entries[place], ''
    end
  end
  if #chosen > 0 and keep then
    use_level(queue, parcel.level)
    add_parcel(queue, 'later', parcel.level, 0, pack_entries(chosen), #chosen, queue.now)
  end
  shrink_parcel(queue, 'dead', parcel, entries, nil, score)
  return #chosen
end

local function settle_letters(keys, args, keep)
  local queue, left, more = load_queue(keys[1]), tonumber(args[1]), false
  local most = left
  for i = 2, #args, 2 do
    local parcel = parse_member(args[i])
    if parcel then left = left - settle_dead(queue, parcel, args[i + 1], left, keep) end
  end
  if #args == 1 then
    local oldest = redis.call('ZRANGE', queue.key .. ':dead', 0, DEAD_STEPS - 1)
    for _, member in ipairs(oldest) do
      local parcel = parse_member(member)
      if parcel and left > 0 then left = left - settle_dead(queue, parcel, '*', left, keep) end
      if not parcel then redis.call('ZREM', queue.key .. ':dead', member) end
    end
    more = left > 0 and #oldest == DEAD_STEPS
  end
  if keep then serve_waiters(queue) end
  save_queue(queue)
  return { most - left, more and 1 or 0 }
end

redis.register_function('hw_queue_bring_back', function(keys, args)
  return settle_letters(keys, args, true)
end)

redis.register_function{
  function_name = 'hw_queue_discard',
  callback = function(keys, args) return settle_letters(keys, args, false) end,
  flags = { 'allow-oom' },
}

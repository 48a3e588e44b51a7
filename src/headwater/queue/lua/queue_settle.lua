--[[
  hw_queue_settle: ack, nack, release or extend what was handed out.
  A receipt counts until its deadline, and only once; anything else changes nothing.

  KEYS   1 the queue
  ARGV   1 'ack': done, forget it
           'nack': come again after 2 or after the queue's own rest, whichever is longer; or be
                   given up, when it was handed out as often as the queue allows
           'release': come again at once, as if it had not been handed out
           'extend': hold it for 2 ms from now
         2 ms
         3.. head of a receipt, places in it ("1,5,6" or "*" for all), head, places, ...
  Reply  how many messages that concerned
]]
-- What to do with entries that leave a parcel, or with a whole one.
local function destination(queue, deed, ms, attempt)
  if deed == 'release' then return 'again', math.max(attempt - 1, 0), queue.now end
  local tries = most_attempts(queue)
  if tries > 0 and attempt >= tries then return 'dead', attempt, queue.now end
  return 'again', attempt, queue.now + math.max(ms, rest_ms(queue, attempt))
end

local function settle_whole(queue, deed, ms, parcel)
  if deed == 'ack' then
    drop_parcel(queue, 'held', parcel)
  elseif deed == 'extend' then
    put_parcel(queue, 'held', parcel.level, queue.now + ms, parcel.member)
  else
    local set, attempt, score = destination(queue, deed, ms, parcel.attempt)
    redis.call('ZREM', set_key(queue, 'held', parcel.level), parcel.member)
    redis.call('ZADD', set_key(queue, set, parcel.level), score,
      member_of(parcel.number, parcel.level, attempt, parcel.count))
    queue.held, queue[set] = queue.held - parcel.count, queue[set] + parcel.count
  end
  return parcel.count
end

local function settle_some(queue, deed, ms, parcel, entries, deadlines, score, places)
  local chosen = {}
  for _, place in ipairs(places) do
    local ends = deadlines and deadlines[place] or score
    if entries[place] and entries[place] ~= '' and ends > queue.now then
      if deed == 'extend' then
        -- The others keep the deadline they had.
        if not deadlines then
          deadlines = {}
          for i = 1, #entries do deadlines[i] = score end
        end
        chosen[#chosen + 1], deadlines[place] = entries[place], queue.now + ms
      else
        chosen[#chosen + 1], entries[place] = entries[place], ''
      end
    end
  end
  if #chosen == 0 then return 0 end
  if deed ~= 'ack' and deed ~= 'extend' then
    local set, attempt, at = destination(queue, deed, ms, parcel.attempt)
    add_parcel(queue, set, parcel.level, attempt, pack_entries(chosen), #chosen, at)
  end
  if deed == 'extend' and #chosen == parcel.count then deadlines, score = nil, queue.now + ms end
  shrink_parcel(queue, 'held', parcel, entries, deadlines, score)
  return #chosen
end

local function settle(queue, deed, ms, head, text)
  local parcel = parse_member(head)
  if not parcel then return 0 end
  local key = set_key(queue, 'held', parcel.level)
  local score = tonumber(redis.call('ZSCORE', key, head) or nil)
  if score and score <= queue.now then return 0 end
  if score and text == '*' then return settle_whole(queue, deed, ms, parcel) end
  local entries, deadlines
  score, entries, deadlines = find_parcel(queue, 'held', parcel)
  if not score or not entries then return 0 end
  local places = places_of(text, #entries)
  return settle_some(queue, deed, ms, parcel, entries, deadlines, score, places)
end

redis.register_function{
  function_name = 'hw_queue_settle',
  callback = function(keys, args)
    local queue, deed, ms, total = load_queue(keys[1]), args[1], tonumber(args[2]), 0
    for i = 3, #args, 2 do total = total + settle(queue, deed, ms, args[i], args[i + 1]) end
    if deed == 'ack' then
      queue.acked = queue.acked + total
    elseif total > 0 and deed ~= 'extend' then
      serve_waiters(queue)
      poke_waiter(queue, queue.now + ms)
    end
    save_queue(queue)
    return total
  end,
  flags = { 'allow-oom' },
}

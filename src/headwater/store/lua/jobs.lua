--[[
  Jobs of servers: the request of each, its progress, and which process has it, for how long.

  J:open      zset   job -> ms until which its process has it; then another one may take it
  J:over      zset   job -> ms when it ended; the oldest are forgotten
  J:job:<job> hash   kind; head (what is shown of it); asked (what is needed to continue it, until it ends);
                     note (its progress); noted (ms); token (of its process, grows with every new owner);
                     by (who took it); stop (1: it is to be stopped)

  A call that stops half-way leaves a job open that has ended, or one that both sets name: it is then open, and
  the process that takes it ends it again.
]]
local jobs = { KEPT = 100, PAGE = 100 }

function jobs.key(J, job) return J .. ':job:' .. job end

-- Returns whether the process that has a job until then may still have it. After the clock was stepped back,
-- a lease appears longer than any lease that is given: a live process has renewed it within another lease.
function jobs.is_held(until_ms, now, lease)
  return until_ms > now and until_ms <= now + 2 * lease
end

-- Ends a job, and forgets the oldest of those that have ended.
function jobs.finish(J, job, now)
  redis.call('ZADD', J .. ':over', digits(now), job)
  redis.call('ZREM', J .. ':open', job)
  redis.call('HDEL', jobs.key(J, job), 'asked')
  for _, old in ipairs(redis.call('ZRANGE', J .. ':over', jobs.KEPT, -1, 'REV')) do
    if not redis.call('ZSCORE', J .. ':open', old) then redis.call('DEL', jobs.key(J, old)) end
    redis.call('ZREM', J .. ':over', old)
  end
end

--[[
  hw_job_begin: record a job, and assign it to a process. One that has ended starts again.
  KEYS   1 the record of jobs
  ARGV   1 the job   2 its kind   3 what is shown of it   4 its request   5 its progress
         6 who has it   7 for how many ms
  Reply  { token, server's ms }; the token is 0 when another process has the job, and nothing is changed
]]
redis.register_function('hw_job_begin', function(keys, args)
  local J, job, kind, head, asked, note, by = keys[1], args[1], args[2], args[3], args[4], args[5], args[6]
  local lease, now = tonumber(args[7]), server_ms()
  local facts = jobs.key(J, job)
  local known = redis.call('HMGET', facts, 'token', 'by', 'asked')
  local token = tonumber(known[1] or 0)
  local until_ms = redis.call('ZSCORE', J .. ':open', job)
  if not until_ms or known[2] ~= by then
    if until_ms and known[3] and jobs.is_held(tonumber(until_ms), now, lease) then return { 0, now } end
    token = next_by_clock(token)
    -- It is listed first: a record that no set names would never be deleted.
    redis.call('ZADD', J .. ':open', digits(now + lease), job)
    redis.call(
      'HSET', facts, 'kind', kind, 'head', head, 'asked', asked, 'note', note, 'noted', digits(now),
      'token', digits(token), 'by', by, 'stop', 0
    )
  end
  redis.call('ZREM', J .. ':over', job)
  return { token, now }
end)

--[[
  hw_job_note: record the progress of a job, and extend its lease, or end it.
  KEYS   1 the record of jobs
  ARGV   1 the job   2 token   3 its progress   4 ms of the lease from now on, 0 to release it; '' when
         it has ended
  Reply  { 1, or 0 when another process has taken the job and nothing is changed; 1 when it is to be stopped; server's ms }
]]
redis.register_function{
  function_name = 'hw_job_note',
  callback = function(keys, args)
    local J, job, token, note, lease, now = keys[1], args[1], args[2], args[3], args[4], server_ms()
    local facts = jobs.key(J, job)
    local known = redis.call('HMGET', facts, 'token', 'stop')
    if known[1] ~= token then return { 0, 0, now } end
    local stop = known[2] == '1' and 1 or 0
    if not redis.call('ZSCORE', J .. ':open', job) then return { lease == '' and 1 or 0, stop, now } end
    redis.call('HSET', facts, 'note', note, 'noted', digits(now))
    if lease == '' then
      jobs.finish(J, job, now)
    else
      redis.call('ZADD', J .. ':open', digits(now + tonumber(lease)), job)
    end
    return { 1, stop, now }
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_job_take: take a job whose lease has ended, also when the server's clock was stepped back since.
  KEYS   1 the record of jobs
  ARGV   1 who takes it   2 for how many ms   3.. kinds that it can do
  Reply  { server's ms, job, kind, token, its request, its progress, 1 when it is to be stopped };
         { server's ms } when there is none
  Cost   O(jobs that nobody has and that it cannot do), PAGE of them at a time
]]
-- Returns the first job between two times that is of some kinds, and its facts; ends those that were half-way.
function jobs.find(J, low, high, kinds, now)
  local over = 0
  while true do
    local page = redis.call('ZRANGE', J .. ':open', low, high, 'BYSCORE', 'LIMIT', over, jobs.PAGE)
    for _, job in ipairs(page) do
      local facts = redis.call('HMGET', jobs.key(J, job), 'kind', 'token', 'asked', 'note', 'stop')
      if not facts[3] then
        jobs.finish(J, job, now)
      elseif kinds[facts[1]] then
        return job, facts
      else
        -- It stays, for a process that can do it, and does not hide those behind it.
        over = over + 1
      end
    end
    if #page < jobs.PAGE then return nil end
  end
end

redis.register_function{
  function_name = 'hw_job_take',
  callback = function(keys, args)
    local J, by, lease, now, kinds = keys[1], args[1], tonumber(args[2]), server_ms(), {}
    for place = 3, #args do kinds[args[place]] = true end
    local job, facts = jobs.find(J, '-inf', digits(now), kinds, now)
    if not job then job, facts = jobs.find(J, '(' .. digits(now + 2 * lease), '+inf', kinds, now) end
    if not job then return { now } end
    local kind, token, asked, note, stop = unpack(facts)
    local taken = next_by_clock(tonumber(token))
    redis.call('HSET', jobs.key(J, job), 'token', digits(taken), 'by', by)
    redis.call('ZADD', J .. ':open', digits(now + lease), job)
    return { now, job, kind, taken, asked, note, tonumber(stop) }
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_job_stop: ask for a job to be stopped, by the process that has it or by the next one.
  KEYS   1 the record of jobs
  ARGV   1 the job
  Reply  1, or 0 when it has ended
]]
redis.register_function{
  function_name = 'hw_job_stop',
  callback = function(keys, args)
    local J, job = keys[1], args[1]
    if not redis.call('ZSCORE', J .. ':open', job) then return 0 end
    redis.call('HSET', jobs.key(J, job), 'stop', 1)
    return 1
  end,
  flags = { 'allow-oom' },
}

--[[
  hw_job_list: list the known jobs of a kind, those that have not ended first, then the newest first.
  KEYS   1 the record of jobs
  ARGV   1 kind; '' for all
  Reply  { server's ms, job, its kind, ms until which a process has it or -1 when it has ended, ms when it was noted,
           1 when it is to be stopped, what is shown of it, its progress, ... }
]]
redis.register_function{
  function_name = 'hw_job_list',
  callback = function(keys, args)
    local J, kind, reply = keys[1], args[1], { server_ms() }
    local open = redis.call('ZRANGE', J .. ':open', '+inf', '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 1000, 'WITHSCORES')
    local seen = {}
    local function add(job, until_ms)
      local facts = redis.call('HMGET', jobs.key(J, job), 'kind', 'noted', 'stop', 'head', 'note')
      if not facts[1] or (kind ~= '' and facts[1] ~= kind) or seen[job] then return end
      seen[job] = true
      local n = #reply
      reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = job, facts[1], until_ms, tonumber(facts[2])
      reply[n + 5], reply[n + 6], reply[n + 7] = tonumber(facts[3]), facts[4], facts[5]
    end
    for place = 1, #open, 2 do add(open[place], tonumber(open[place + 1])) end
    for _, job in ipairs(redis.call('ZRANGE', J .. ':over', 0, -1, 'REV')) do add(job, -1) end
    return reply
  end,
  flags = { 'no-writes' },
}

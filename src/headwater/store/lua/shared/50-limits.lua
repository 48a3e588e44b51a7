--[[
  Limits of a group or a queue: how many messages may be in flight, and how many are delivered in a period, in
  all and per key.

    field limits   "in flight:in flight per key:rate:rate per key", each '' for none; a rate is
                   "count/period in ms/burst"; no field, or '', when nothing is limited
    field bucket   when the token bucket of the rate is full again, in us

  A bucket is one number: each token that is taken moves the time at which it is full by the time in which one
  token comes. So it needs no clock of its own, and in any period no more tokens are taken than come in it, plus
  the burst.
]]
local limits = {
  -- A reader that waits for tokens waits for at most as many as come in this time.
  gather_us = 20000,
}

function limits.rate_of(text)
  local count, period, burst = string.match(text, '^(%d+)/(%d+)/(%d+)$')
  return count and { step = tonumber(period) * 1000 / tonumber(count), burst = tonumber(burst) } or nil
end

-- Reads the field; returns nil when nothing is limited.
function limits.of(text)
  if not text or text == '' then return nil end
  local most, most_of_key, rate, rate_of_key = string.match(text, '^(%d*):(%d*):([%d/]*):([%d/]*)$')
  if not most then return { damaged = true } end
  return {
    most = tonumber(most), most_of_key = tonumber(most_of_key), rate = limits.rate_of(rate),
    rate_of_key = limits.rate_of(rate_of_key),
  }
end

-- Nothing is delivered under limits that cannot be read.
function limits.refuse()
  error({ err = 'ERR the field limits cannot be read; set the limits again' })
end

-- Returns when a bucket is full, seen from now. An empty bucket is full after a while; if the clock was set back, or the
-- limits were changed, the stored time may be later, and the caller stores what this returns instead.
function limits.full_at(rate, full, us)
  return math.max(math.min(full, us + rate.burst * rate.step), us)
end

-- Returns how many tokens there are; full: when the bucket is full again.
function limits.tokens(rate, full, us)
  return math.max(math.floor(rate.burst - (limits.full_at(rate, full, us) - us) / rate.step), 0)
end

-- Returns when the bucket is full again after some tokens were taken.
function limits.spend(rate, full, us, count)
  return math.ceil(limits.full_at(rate, full, us) + count * rate.step)
end

-- Returns in how many us that many tokens are there, or as many as are worth waiting for.
function limits.wait(rate, full, us, count)
  local wanted = math.max(1, math.min(count, rate.burst, math.floor(limits.gather_us / rate.step)))
  return math.max(limits.full_at(rate, full, us) - us - (rate.burst - wanted) * rate.step, 0)
end

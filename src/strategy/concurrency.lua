-- Concurrency. State: a sorted set of permits, one per unit in flight, by when each expires, in us since the epoch. A permit is
-- "caller:number", numbered for each caller from 1.
--
-- p: 1 concurrent, 2 ttl of a permit in us
-- state: used, far (1: a permit expires later than one TTL from now)
-- luacheck: read globals call format now ceil max cap_ttl

local function available(key, p)
  local used = call('ZCOUNT', key, format('(%d', now), '+inf')
  local far = used > 0 and call('ZCOUNT', key, format('(%d', now + p[2]), '+inf') > 0 and 1 or 0
  return p[1] - used, used, far
end

-- The clock stepped back: permits that would live for longer than one TTL live for one.
local function shorten(key, p)
  local expires_at = format('%d', now + p[2])
  for _, permit in ipairs(call('ZRANGEBYSCORE', key, '(' .. expires_at, '+inf')) do
    call('ZADD', key, 'XX', expires_at, permit)
  end
end

local function set_ttl(key, p)
  return call('PEXPIREAT', key, format('%d', ceil((now + p[2]) / 1000) + 1))
end

-- What follows a charge: the key's TTL, and the removal of expired permits.
local function tidy(key, p, far)
  set_ttl(key, p)
  if far == 1 then
    shorten(key, p)
  end
  call('ZREMRANGEBYSCORE', key, '-inf', format('%d', now))
end

local function charge(key, p, used, far, _, units, callers, each)
  local expires_at, permits, added, numbers = format('%d', now + p[2]), {}, {}, {}
  for unit = 1, units do
    local caller = callers[ceil(unit / each)]
    local number = (numbers[caller] or 0) + 1
    numbers[caller] = number
    added[unit] = caller .. ':' .. number
    permits[#permits + 1], permits[#permits + 2] = expires_at, added[unit]
    -- More would not fit on the stack.
    if #permits == 1000 then
      call('ZADD', key, unpack(permits))
      permits = {}
    end
  end
  if #permits > 0 then
    call('ZADD', key, unpack(permits))
  end
  local ok, why = pcall(tidy, key, p, far)
  if not ok then
    -- The call fails, so no request would release these permits: they would be held for one TTL.
    for i = 1, #added do
      pcall(call, 'ZREM', key, added[i])
    end
    error(why, 0)
  end
  return used + units, 0
end

local function refund(key, p, used, far, _, charged_at, window_id, remaining, want, caller)
  local refunded = 0
  for number = remaining, max(1, remaining - want + 1), -1 do
    local permit = caller .. ':' .. number
    local expires_at = call('ZSCORE', key, permit)
    if expires_at then
      call('ZREM', key, permit)
      if tonumber(expires_at) > now then
        refunded = refunded + 1
      end
    end
  end
  return refunded, used - refunded, far
end

local function renew(key, p, used, far, _, remaining, caller)
  local expires_at, renewed = format('%d', now + p[2]), 0
  for number = 1, remaining do
    local permit = caller .. ':' .. number
    local old = call('ZSCORE', key, permit)
    if old and tonumber(old) > now then
      call('ZADD', key, 'XX', expires_at, permit)
      renewed = renewed + 1
    end
  end
  if renewed > 0 then
    set_ttl(key, p)
  end
  return renewed, used, far
end

local function repair(key, p, used, far)
  if far == 1 then
    shorten(key, p)
  end
  cap_ttl(key, ceil(p[2] / 1000) + 2)
end

return { available = available, charge = charge, refund = refund, renew = renew, repair = repair }

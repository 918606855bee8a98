-- Concurrency. State: a sorted set of permits, one per unit in flight, by when each expires, in us since the epoch.
--
-- p: 1 concurrent, 2 a permit's life in us
-- state: used, far (1: a permit expires later than one life from now)
-- luacheck: read globals call format now ceil max outlive

local function available(key, p)
  local used = call('ZCOUNT', key, format('(%d', now), '+inf')
  local far = used > 0 and call('ZCOUNT', key, format('(%d', now + p[2]), '+inf') > 0 and 1 or 0
  return p[1] - used, used, far
end

-- The clock stepped back: what would live for longer than a life lives for one.
local function shorten(key, p)
  local ends = format('%d', now + p[2])
  for _, permit in ipairs(call('ZRANGEBYSCORE', key, '(' .. ends, '+inf')) do
    call('ZADD', key, 'XX', ends, permit)
  end
end

local function live(key, p)
  return call('PEXPIREAT', key, format('%d', ceil((now + p[2]) / 1000) + 1))
end

local function charge(key, p, used, far, _, units, callers, each)
  local ends, permits, added, places = format('%d', now + p[2]), {}, {}, {}
  for unit = 1, units do
    local caller = callers[ceil(unit / each)]
    local place = (places[caller] or 0) + 1
    places[caller] = place
    added[unit] = caller .. ':' .. place
    permits[#permits + 1], permits[#permits + 2] = ends, added[unit]
    -- more would not fit on the stack
    if #permits == 1000 then
      call('ZADD', key, unpack(permits))
      permits = {}
    end
  end
  if #permits > 0 then
    call('ZADD', key, unpack(permits))
  end
  local ok, why = pcall(live, key, p)
  if not ok then
    -- permits that nobody knows of would hold their places for one life
    for i = 1, #added do
      pcall(call, 'ZREM', key, added[i])
    end
    error(why, 0)
  end
  if far == 1 then
    shorten(key, p)
  end
  call('ZREMRANGEBYSCORE', key, '-inf', format('%d', now))
  return used + units, 0
end

local function refund(key, p, used, far, _, charged_at, window_id, remaining, want, caller)
  local back = 0
  for place = remaining, max(1, remaining - want + 1), -1 do
    local permit = caller .. ':' .. place
    local ends = call('ZSCORE', key, permit)
    if ends then
      call('ZREM', key, permit)
      if tonumber(ends) > now then
        back = back + 1
      end
    end
  end
  return back, used - back, far
end

local function renew(key, p, used, far, _, remaining, caller)
  local ends, renewed = format('%d', now + p[2]), 0
  for place = 1, remaining do
    local permit = caller .. ':' .. place
    local was = call('ZSCORE', key, permit)
    if was and tonumber(was) > now then
      call('ZADD', key, 'XX', ends, permit)
      renewed = renewed + 1
    end
  end
  if renewed > 0 then
    live(key, p)
  end
  return renewed, used, far
end

local function repair(key, p, used, far)
  if far == 1 then
    shorten(key, p)
  end
  outlive(key, ceil(p[2] / 1000) + 2)
end

return { available = available, charge = charge, refund = refund, renew = renew, repair = repair }

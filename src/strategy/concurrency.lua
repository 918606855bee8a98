-- Concurrency. State: a sorted set of permits, each the caller that holds it, by when it expires, in us since the epoch. `caller=` is
-- the units of a permit for more than one, and `=` those of all permits, both negative: so they are before all permits.
--
-- p: 1 concurrent, 2 ttl of a permit in us
-- state: used, far (1: a permit expires later than one TTL from now), all (used, and the units of expired permits)
-- luacheck: read globals call format now ceil min max pcall error unpack foreign cap_ttl

-- The units of a score, which are stored as a negative number.
local function units_of(key, score)
  local units = -score
  if units < 0 or units >= 1e15 or units % 1 ~= 0 then
    foreign(key, 'not a set of permits')
  end
  return units
end

-- When a caller's permit expires, if there is one, and its units.
local function permit_of(key, caller)
  local scores = call('ZMSCORE', key, caller, caller .. '=')
  return tonumber(scores[1]), units_of(key, scores[2] or -1)
end

-- The callers whose permits have expired.
local function expired_callers(key)
  return call('ZRANGEBYSCORE', key, 0, format('%d', now))
end

local function available(key, p)
  local all, far = call('ZSCORE', key, '='), 0
  if not all then
    if call('ZCOUNT', key, '-inf', '+inf') > 0 then
      foreign(key, 'not a set of permits')
    end
    return p[1], 0, 0, 0
  end
  all = units_of(key, all)
  local used = all
  for _, caller in ipairs(expired_callers(key)) do
    local _, units = permit_of(key, caller)
    used = used - units
  end
  if used > 0 and call('ZCOUNT', key, format('(%d', now + p[2]), '+inf') > 0 then
    far = 1
  end
  return p[1] - used, used, far, all
end

-- The clock stepped back: permits that would live for longer than one TTL live for one.
local function shorten(key, p)
  local expires_at = format('%d', now + p[2])
  for _, caller in ipairs(call('ZRANGEBYSCORE', key, '(' .. expires_at, '+inf')) do
    call('ZADD', key, 'XX', expires_at, caller)
  end
end

local function remove_expired(key, used)
  for _, caller in ipairs(expired_callers(key)) do
    call('ZREM', key, caller, caller .. '=')
  end
  call('ZADD', key, format('%d', -used), '=')
end

local function set_ttl(key, p)
  return call('PEXPIREAT', key, format('%d', ceil((now + p[2]) / 1000) + 1))
end

-- What follows a charge: the key's TTL, the end of permits that are `far` off, and, with `used`, the removal of expired ones.
local function tidy(key, p, far, used)
  set_ttl(key, p)
  if far == 1 then
    shorten(key, p)
  end
  if used then
    remove_expired(key, used)
  end
end

local function charge(key, p, used, far, all, units, callers, each)
  local expires_at, request, left = format('%d', now + p[2]), 0, units
  local added, permits = {}, { format('%d', -(all + units)), '=' }
  while left > 0 do
    -- Requests of one caller have one permit.
    request = request + 1
    local caller, own = callers[request], min(each, left)
    while own < left and callers[request + 1] == caller do
      request, own = request + 1, min(own + each, left)
    end
    permits[#permits + 1], permits[#permits + 2] = expires_at, caller
    added[#added + 1] = caller
    if own > 1 then
      permits[#permits + 1], permits[#permits + 2] = format('%d', -own), caller .. '='
    end
    left = left - own
    -- More would not fit on the stack.
    if #permits >= 1000 or left == 0 then
      call('ZADD', key, unpack(permits))
      permits = {}
    end
  end
  local ok, why = pcall(tidy, key, p, far, all > used and used + units)
  if not ok then
    -- The call fails, so no request would release these permits. Where they can't be removed, they expire now.
    local is_removed = true
    for i = 1, #added do
      is_removed = pcall(call, 'ZREM', key, added[i], added[i] .. '=')
      if not is_removed then
        pcall(call, 'ZADD', key, 'XX', format('%d', now), added[i])
      end
    end
    if is_removed and all > 0 then
      pcall(call, 'ZADD', key, format('%d', -all), '=')
    elseif is_removed then
      pcall(call, 'DEL', key)
    end
    error(why, 0)
  end
  return used + units, 0, used + units
end

-- A refund leaves the permit as many units as its receipt says (`kept`), so that one that is sent twice releases nothing more.
local function refund(key, p, used, far, all, charged_at, window_id, remaining, want, caller)
  local expires_at, units = permit_of(key, caller)
  if not expires_at then
    return 0, used, far, all
  end
  local kept = max(0, remaining - want)
  local gone = kept == 0 and units or max(0, min(want, units - kept))
  if gone == all then
    call('DEL', key)
  elseif gone > 0 then
    if gone == units then
      call('ZREM', key, caller, caller .. '=')
      call('ZADD', key, format('%d', gone - all), '=')
    else
      call('ZADD', key, format('%d', gone - all), '=', format('%d', gone - units), caller .. '=')
    end
  end
  if expires_at <= now then
    return 0, used, far, all - gone
  end
  return min(want, gone), used - gone, far, all - gone
end

local function renew(key, p, used, far, all, caller)
  local expires_at, units = permit_of(key, caller)
  if not expires_at or expires_at <= now then
    return 0, used, far, all
  end
  call('ZADD', key, 'XX', format('%d', now + p[2]), caller)
  set_ttl(key, p)
  return units, used, far, all
end

local function repair(key, p, used, far, all)
  if all > used then
    if used == 0 then
      call('DEL', key)
    else
      remove_expired(key, used)
    end
  end
  if far == 1 then
    shorten(key, p)
  end
  cap_ttl(key, ceil(p[2] / 1000) + 2)
end

return { available = available, charge = charge, refund = refund, renew = renew, repair = repair }

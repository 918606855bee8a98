-- Generic cell rate algorithm. State: the theoretical arrival time (TAT) in ticks of 50 ns, modulo a cycle of 225,000,000 s.
-- It is an integer from 1 to the length of the cycle. It is never 0: so the result of an INCRBY says whether there was a key.
-- A key expires at the first whole minute at or after its TAT. A cycle is a whole number of minutes.
--
-- p, in ticks but for the burst: 1 burst, 2 emission interval, 3 tolerance (burst x interval), 4 the deepest debt of any tier
--    of the policy, if that is more than twice the tolerance
-- state: ahead (how far the TAT lies ahead of now, in ticks), found (0: no key, 1: ahead is as stored, 2: the stored TAT lies
--    further ahead than any debt, and has to be written)
-- luacheck: read globals call format now now_s now_us ceil min max foreign number expiry

local cycle, minute = 4500000000000000, 1200000000
local now_ticks, cycle_ms = now_s % 225000000 * 20000000 + now_us * 20, (now_s - now_s % 225000000) * 1000

local function available(key, p)
  local value = call('GET', key)
  if not value then
    return p[1], 0, 0
  end
  local tat, tolerance, found = number(key, value, 16), p[3], 1
  if tat > cycle then
    foreign(key, 'not an arrival time')
  end
  -- The shorter way around the cycle: a debt and the steps of a clock are less than half of it.
  local ahead = tat - now_ticks
  if ahead > cycle / 2 then
    ahead = ahead - cycle
  elseif ahead <= -cycle / 2 then
    ahead = ahead + cycle
  end
  -- 0 is not ours, and counts as full.
  if ahead < 0 or tat == 0 then
    ahead = 0
  elseif ahead > (p[4] or 2 * tolerance) then
    -- The clock stepped back, or the quota was another one.
    ahead, found = tolerance, 2
  end
  local free = tolerance - ahead
  return (free - free % p[2]) / p[2], ahead, found
end

-- The expiry of a key whose TAT lies so far ahead, in ms since the epoch, as text.
local function expires_ms(ahead)
  local tat = now_ticks + ahead
  return format('%d', cycle_ms + (tat + -tat % minute) / 20000)
end

local function write(key, ahead)
  call('SET', key, format('%d', (now_ticks + ahead - 1) % cycle + 1), 'PXAT', expires_ms(ahead))
end

local function charge(key, p, ahead, _, _, units)
  ahead = ahead + units * p[2]
  write(key, ahead)
  return ahead, 1
end

-- Refunds the part that time has not refilled already, to the fraction of a unit.
local function refund(key, p, ahead, found, _, charged_at, window_id, remaining, want)
  local left = window_id and remaining * p[2] - max(0, now - charged_at) * 20 or min(remaining * p[2], ahead)
  local ticks = max(0, min(want * p[2], left))
  if ticks >= ahead and ahead > 0 then
    call('DEL', key)
    ahead, found = 0, 0
  elseif ticks > 0 and ahead > 0 then
    ahead, found = ahead - ticks, 1
    write(key, ahead)
  end
  return ceil(ticks / p[2]), ahead, found
end

local function repair(key, p, ahead, found)
  if found == 2 then
    -- The stored TAT is further ahead than any debt: the capped one replaces it.
    write(key, ahead)
  elseif found == 1 and ahead == 0 then
    -- The TAT has passed: the key counts as a missing one.
    call('DEL', key)
  elseif found == 1 then
    -- A TTL that is missing or too long is shortened.
    local expires, expected = expiry(key), expires_ms(ahead)
    if expires == -1 or expires > tonumber(expected) then
      call('PEXPIREAT', key, expected)
    end
  end
end

return { available = available, charge = charge, refund = refund, repair = repair }

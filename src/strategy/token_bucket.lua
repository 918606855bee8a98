-- Token bucket. State: how much is missing of a full bucket, in units of 50 ns of refilling, and when that was so, in us
-- since the epoch: "missing:stamp". Both stand in one key, so that they can't part.
--
-- p: 1 burst, 2 emission interval, 3 tolerance (burst x interval), 4 the deepest debt of any tier of the policy, if that is
--    more than twice the tolerance
-- state: missing; off (1: the stamp lies ahead, or more is missing than any debt)
-- luacheck: read globals call format now now_s now_us next_ms floor ceil min max match foreign outlive

local function available(key, p)
  local missing, off = 0, 0
  local value = call('GET', key)
  if value then
    local was, stamp = match(value, '^(%d+):(%d+)$')
    if not was or #was > 16 or #stamp > 16 then
      foreign(key, 'not a bucket, "missing:stamp"')
    end
    local elapsed = now - tonumber(stamp)
    if elapsed < 0 then
      -- the clock stepped back: what is missing refills from now on
      elapsed, off = 0, 1
    end
    missing = max(0, tonumber(was) - elapsed * 20)
    if missing > (p[4] or 2 * p[3]) then
      missing, off = p[3], 1
    end
  end
  return floor((p[3] - missing) / p[2]), missing, off
end

local function write(key, missing)
  local value = format('%d:%d%06d', missing, now_s, now_us)
  call('SET', key, value, 'PXAT', format('%d', next_ms + ceil(missing / 20000)))
end

local function charge(key, p, missing, _, _, units)
  missing = missing + units * p[2]
  write(key, missing)
  return missing, 0
end

-- Gives back what time has not, to the fraction of a unit.
local function refund(key, p, missing, off, _, charged_at, _, remaining, want)
  local back = max(0, min(want * p[2], remaining * p[2] - max(0, now - charged_at) * 20))
  if back > 0 and missing > 0 then
    missing, off = max(0, missing - back), 0
    write(key, missing)
  end
  return ceil(back / p[2]), missing, off
end

local function repair(key, p, missing, off)
  if off == 1 then
    write(key, missing)
  else
    outlive(key, ceil(missing / 20000))
  end
end

return { available = available, charge = charge, refund = refund, repair = repair }

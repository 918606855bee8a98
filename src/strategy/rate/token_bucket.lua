-- Token bucket. State: the deficit, which is how much is missing of a full bucket, in ticks of 50 ns of refilling, and when
-- that was so, in us since the epoch: "deficit:stamp". Both are one value, so that neither expires alone.
--
-- p, in ticks but for the burst: 1 burst, 2 emission interval, 3 tolerance (burst x interval), 4 the deepest debt of any tier
--    of the policy, if that is more than twice the tolerance
-- state: deficit, off (1: the stamp lies ahead, or the deficit is deeper than any debt)
-- luacheck: read globals call format now now_s now_us next_ms floor ceil min max match foreign cap_ttl

local function available(key, p)
  local deficit, off = 0, 0
  local value = call('GET', key)
  if value then
    local value_deficit, stamp = match(value, '^(%d+):(%d+)$')
    if not value_deficit or #value_deficit > 16 or #stamp > 16 then
      foreign(key, 'not a bucket, "deficit:stamp"')
    end
    local elapsed = now - tonumber(stamp)
    if elapsed < 0 then
      -- The clock stepped back: the bucket refills from now on.
      elapsed, off = 0, 1
    end
    deficit = max(0, tonumber(value_deficit) - elapsed * 20)
    if deficit > (p[4] or 2 * p[3]) then
      deficit, off = p[3], 1
    end
  end
  return floor((p[3] - deficit) / p[2]), deficit, off
end

local function write(key, deficit)
  local value = format('%d:%d%06d', deficit, now_s, now_us)
  call('SET', key, value, 'PXAT', format('%d', next_ms + ceil(deficit / 20000)))
end

local function charge(key, p, deficit, _, _, units)
  deficit = deficit + units * p[2]
  write(key, deficit)
  return deficit, 0
end

-- Refunds what time has not returned, to the fraction of a unit.
local function refund(key, p, deficit, off, _, charged_at, window_id, remaining, want)
  local left = window_id and remaining * p[2] - max(0, now - charged_at) * 20 or min(remaining * p[2], deficit)
  local ticks = max(0, min(want * p[2], left))
  if ticks > 0 and deficit > 0 then
    deficit, off = max(0, deficit - ticks), 0
    write(key, deficit)
  end
  return ceil(ticks / p[2]), deficit, off
end

local function repair(key, p, deficit, off)
  if off == 1 then
    write(key, deficit)
  else
    cap_ttl(key, ceil(deficit / 20000))
  end
end

return { available = available, charge = charge, refund = refund, repair = repair }

-- Token bucket. State: how much is missing of a full bucket, in 0.1 ns of refilling, and when that was so, in us since
-- the epoch: "missing:stamp". Both stand in one key, so that they can't part.
--
-- p: 1 burst, 2 emission interval, 3 tolerance (burst x interval), 4 0.1 ns per unit of time, 5 units per second,
--    6 units per ms, 7 units per us
-- state: missing, in units of time; off (1: the stamp lies ahead, or more is missing than any debt)

local function room(key, p)
  local missing, off = 0, 0
  local value = call('GET', key)
  if value then
    local was, stamp = match(value, '^(%d+):(%d+)$')
    if not was or #was > 19 or #stamp > 16 then
      foreign(key, 'not a bucket, "missing:stamp"')
    end
    missing = (tonumber(sub(was, 1, -11)) or 0) * p[5] + ceil(tonumber(sub(was, -10)) / p[4])
    local elapsed = now - tonumber(stamp)
    if elapsed < 0 then
      -- the clock stepped back: what is missing refills from now on
      elapsed, off = 0, 1
    end
    missing = max(0, missing - elapsed * p[7])
    if missing > 2 * p[3] then
      missing, off = p[3], 1
    end
  end
  return floor((p[3] - missing) / p[2]), missing, off
end

local function write(key, p, missing)
  local s = floor(missing / p[5])
  local f = (missing - s * p[5]) * p[4]
  local value = format('%d%010d:%d%06d', s, f, now_s, now_us)
  call('SET', key, value, 'PXAT', format('%d', next_ms + ceil(missing / p[6])))
end

local function take(key, p, missing, _, _, units)
  missing = missing + units * p[2]
  write(key, p, missing)
  return missing, 0
end

-- To the fraction: what time has not given back of so many units. What is left of the last of them counts as one.
local function refund(key, p, missing, _, _, at, _, left, want)
  local back = max(0, min(want * p[2], left * p[2] - max(0, now - at) * p[7]))
  if back > 0 and missing > 0 then
    missing = max(0, missing - back)
    write(key, p, missing)
  end
  return ceil(back / p[2]), missing, 0
end

local function mend(key, p, missing, off)
  if off == 1 then
    write(key, p, missing)
  else
    outlive(key, ceil(missing / p[6]))
  end
end

return { room = room, take = take, refund = refund, mend = mend }

-- Calendar window. State: the newest window that was charged, from when to when, in us since the epoch, and its count:
-- "starts-ends:count". A window of another length, which the policy had before, counts as the current one while both last.
--
-- p: 1 requests, 2 period in us, 3 offset: one window begins so many us after the epoch;
--    or, for days, weeks, months and years of a time zone: 2 is 0, and 4 to 7 are the boundaries of the previous, the current and
--    the next window
-- state: count, ends, starts (of the current window), is_other (1: the key holds another window)
-- luacheck: read globals call format now now_ms floor ceil min max match foreign cap_ttl

-- How long a key outlasts its window, at most: a clock that steps back into the window by less finds it as it was.
local retention = 3600000000

-- When the window that contains now begins and ends, and when the next one ends, which may not be known.
local function window_at(p)
  if p[2] > 0 then
    local starts = p[3] + floor((now - p[3]) / p[2]) * p[2]
    return max(0, starts), starts + p[2], starts + 2 * p[2]
  end
  if now < p[4] or now >= p[7] then
    -- The boundaries are those of another time: the store sends the call again, with those of the server's time.
    error('STALE', 0)
  end
  local i = now < p[5] and 4 or now < p[6] and 5 or 6
  return max(0, p[i]), p[i + 1], p[i + 2]
end

local function available(key, p)
  local count, is_other, starts, ends, next_ends = 0, 0, window_at(p)
  local value = call('GET', key)
  if value then
    local value_starts, value_ends, counted = match(value, '^(%d+)-(%d+):(%d+)$')
    if not value_starts or #value_starts > 16 or #value_ends > 16 or #counted > 16 then
      foreign(key, 'not a window, "starts-ends:count"')
    end
    value_starts, value_ends = tonumber(value_starts), tonumber(value_ends)
    if now < value_ends then
      count = tonumber(counted)
      if value_starts == ends then
        -- The clock stepped back into the previous window, which has ended and doesn't open again.
        if not next_ends then
          error('STALE', 0)
        end
        starts, ends = ends, next_ends
      end
      -- The clock stepped back by more than a window, or the policy's windows had another length.
      is_other = (value_starts ~= starts or value_ends ~= ends) and 1 or 0
    end
  end
  return p[1] - count, count, ends, starts, is_other
end

-- When the key expires, in ms since the epoch.
local function expires_ms(ends, starts)
  return ceil((ends + min(ends - starts, retention)) / 1000)
end

local function write(key, count, ends, starts)
  call('SET', key, format('%d-%d:%d', starts, ends, count), 'PXAT', format('%d', expires_ms(ends, starts)))
end

local function charge(key, p, count, ends, starts, units)
  write(key, count + units, ends, starts)
  return count + units, ends, starts
end

local function refund(key, p, count, ends, starts, charged_at, window_id, remaining, want)
  if window_id and window_id ~= ends then
    return 0, count, ends, starts
  end
  local refunded = min(want, remaining, count)
  if refunded > 0 then
    write(key, count - refunded, ends, starts)
  end
  return refunded, count - refunded, ends, starts
end

local function repair(key, p)
  -- A later entry of the call may have charged since.
  local _, count, ends, starts, is_other = available(key, p)
  if is_other == 1 then
    write(key, count, ends, starts)
  else
    cap_ttl(key, expires_ms(ends, starts) - now_ms)
  end
end

return { available = available, charge = charge, refund = refund, repair = repair }

-- Calendar window. State: the newest window that was charged, from when to when, in us since the epoch, and its count:
-- "starts-ends:count". What was counted in a window of another length, which the policy had before, counts in the one at hand
-- while both last.
--
-- p: 1 requests, 2 period in us, 3 where periods begin, in us after the epoch;
--    or, where windows are days, weeks or months of a time zone: 2 is 0, and 4 to 7 are the boundaries around now
-- state: count, ends, starts (of the window at hand)
-- luacheck: read globals call format now now_ms floor ceil min max match foreign outlive

-- How long a window is remembered after its end, at most: a clock that steps back into it by less finds it used up still.
local remembered = 3600000000

-- The window that the clock shows, and when the next one ends.
local function window(p)
  if p[2] > 0 then
    local starts = p[3] + floor((now - p[3]) / p[2]) * p[2]
    return max(0, starts), starts + p[2], starts + 2 * p[2]
  end
  if now < p[4] or now >= p[7] then
    -- whoever asks has another idea of the time: he is told it, and asks again
    error('STALE', 0)
  end
  local i = now < p[5] and 4 or now < p[6] and 5 or 6
  return max(0, p[i]), p[i + 1], p[i + 2]
end

local function available(key, p)
  local count, other, starts, ends, after = 0, 0, window(p)
  local value = call('GET', key)
  if value then
    local from, to, counted = match(value, '^(%d+)-(%d+):(%d+)$')
    if not from or #from > 16 or #to > 16 or #counted > 16 then
      foreign(key, 'not a window, "starts-ends:count"')
    end
    from, to = tonumber(from), tonumber(to)
    if now < to then
      count = tonumber(counted)
      if from == ends then
        -- The clock stepped back into the window before, which is over: it doesn't open again.
        if not after then
          error('STALE', 0)
        end
        starts, ends = ends, after
      end
      -- the clock stepped back by more than a window, or windows had another length
      other = (from ~= starts or to ~= ends) and 1 or 0
    end
  end
  return p[1] - count, count, ends, starts, other
end

-- When the key ends, in ms since the epoch.
local function last(ends, starts)
  return ceil((ends + min(ends - starts, remembered)) / 1000)
end

local function write(key, count, ends, starts)
  call('SET', key, format('%d-%d:%d', starts, ends, count), 'PXAT', format('%d', last(ends, starts)))
end

local function charge(key, p, count, ends, starts, units)
  write(key, count + units, ends, starts)
  return count + units, ends, starts
end

local function refund(key, p, count, ends, starts, charged_at, window_id, remaining, want)
  if window_id and window_id ~= ends then
    return 0, count, ends, starts
  end
  local back = min(want, remaining, count)
  if back > 0 then
    write(key, count - back, ends, starts)
  end
  return back, count - back, ends, starts
end

local function repair(key, p)
  -- what came later in the same trip may have charged since
  local _, count, ends, starts, other = available(key, p)
  if other == 1 then
    write(key, count, ends, starts)
  else
    outlive(key, last(ends, starts) - now_ms)
  end
end

return { available = available, charge = charge, refund = refund, repair = repair }

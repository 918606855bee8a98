-- Calendar window. State: when the window starts and ends, in us since the epoch, and its count: "starts-ends:count". What
-- was counted in a window of another length, which the policy had before, counts in the one at hand while both last.
--
-- p: 1 requests, 2 period in us, 3 where periods begin, in us after the epoch;
--    or, where windows are days, weeks or months of a time zone: 2 is 0, and 4 to 7 are the boundaries around now
-- state: count, ends (of the window at hand), other (1: what is stored is another window)

local function window(p)
  if p[2] > 0 then
    local starts = p[3] + floor((now - p[3]) / p[2]) * p[2]
    return max(0, starts), starts + p[2]
  end
  if now < p[4] or now >= p[7] then
    -- whoever asks has another idea of the time: he is told it, and asks again
    error('STALE', 0)
  end
  local i = now < p[5] and 4 or now < p[6] and 5 or 6
  return p[i], p[i + 1]
end

local function room(key, p)
  local count, other, starts, ends = 0, 0, window(p)
  local value = call('GET', key)
  if value then
    local from, to, counted = match(value, '^(%d+)-(%d+):(%d+)$')
    if not from or #from > 16 or #to > 16 or #counted > 16 then
      foreign(key, 'not a window, "starts-ends:count"')
    end
    from, to = tonumber(from), tonumber(to)
    if now < to then
      -- one that begins only later was at hand before the clock stepped back
      count = tonumber(counted)
      other = (from ~= starts or to ~= ends) and 1 or 0
    end
  end
  return p[1] - count, count, ends, other
end

local function write(key, p, count)
  local starts, ends = window(p)
  -- a time to live that ends at once would delete the key
  local last = max(ceil(ends / 1000), now_ms + 1)
  call('SET', key, format('%d-%d:%d', starts, ends, count), 'PXAT', format('%d', last))
end

local function take(key, p, count, ends, _, units)
  write(key, p, count + units)
  return count + units, ends, 0
end

local function refund(key, p, count, ends, other, at, mark, left, want)
  if mark and mark ~= ends then
    return 0, count, ends, other
  end
  local back = min(want, left, count)
  if back > 0 then
    write(key, p, count - back)
    other = 0
  end
  return back, count - back, ends, other
end

local function mend(key, p)
  -- what came later in the same trip may have charged since
  local _, count, ends, other = room(key, p)
  if other == 1 then
    write(key, p, count)
  else
    outlive(key, max(ceil((ends - now) / 1000), 1))
  end
end

return { room = room, take = take, refund = refund, mend = mend }

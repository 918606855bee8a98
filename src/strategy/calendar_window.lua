-- Calendar window. State: when the window ends, in us since the epoch, and its count: "ends:count".
--
-- p: 1 requests, 2 period in us, 3 where periods begin, in us after the epoch;
--    or, where windows are days, weeks or months of a time zone: 2 is 0, and 4 to 7 are the boundaries around now
-- state: count, ends (of the window at hand)

local function window(p)
  if p[2] > 0 then
    return p[3] + (floor((now - p[3]) / p[2]) + 1) * p[2]
  end
  if now < p[4] or now >= p[7] then
    -- whoever asks has another idea of the time: he is told it, and asks again
    error('STALE', 0)
  end
  return now < p[5] and p[5] or now < p[6] and p[6] or p[7]
end

local function room(key, p)
  local count, ends = 0, window(p)
  local value = call('GET', key)
  if value then
    local was, counted = match(value, '^(%d+):(%d+)$')
    if not was or #was > 16 or #counted > 16 then
      foreign(key, 'not a window, "ends:count"')
    end
    if tonumber(was) == ends then
      count = tonumber(counted)
    end
  end
  return p[1] - count, count, ends
end

local function write(key, count, ends)
  -- a time to live that ends at once would delete the key
  local last = max(ceil(ends / 1000) - 1, now_ms + 1)
  call('SET', key, format('%d:%d', ends, count), 'PXAT', format('%d', last))
end

local function take(key, p, count, ends, _, units)
  write(key, count + units, ends)
  return count + units, ends
end

local function give(key, p, count, ends, _, at, mark, left, want)
  if mark and mark ~= ends then
    return 0, count, ends
  end
  local back = min(want, left, count)
  if back > 0 then
    write(key, count - back, ends)
  end
  return back, count - back, ends
end

local function mend(key, p, count, ends)
  outlive(key, max(ceil((ends - now) / 1000), 1))
end

return { room = room, take = take, give = give, mend = mend }

-- Sliding window. State: counters of the newest buckets, the newest first, behind their width in us and the number of the
-- newest, counted from the epoch: "width@number:count,count,...". Buckets of another width, which the policy had before,
-- count in the current ones in which they end.
--
-- p: 1 requests, 2 buckets, 3 width of a bucket in ticks, 4 ticks per ms, 5 length of a tick in us
-- state: counts (the current bucket first), used, off (1: the buckets are of another width, 2: the newest lies ahead)
-- luacheck: read globals call format now floor ceil min max match foreign expiry

-- The number of the current bucket, and how many whole ticks of it have passed.
local function current_bucket(p)
  local ticks = floor(now / p[5])
  local current = floor(ticks / p[3])
  return current, ticks - current * p[3]
end

-- How many units of the oldest bucket still count, rounded up, `into` ticks into the current one. Its count may be that of a
-- larger quota: more than any debt of this one counts as twice the requests.
local function weighed(p, count, into)
  local inside, max_debt = p[3] - into, 2 * p[1]
  if count > max_debt and inside > floor(max_debt * p[3] / count) then
    return max_debt
  end
  return ceil(count * inside / p[3])
end

-- After how many ticks no more than `max_used` units are used, if there are no other requests.
local function ticks_until(p, counts, max_used)
  local _, into = current_bucket(p)
  local buckets, width = p[2], p[3]
  for step = 0, buckets do
    local whole = 0
    for j = 1, buckets - step do
      whole = whole + counts[j]
    end
    local count, rest = counts[buckets + 1 - step], max_used - whole
    local from = step == 0 and into or 0
    if rest >= 0 then
      -- How far into this bucket the units of the oldest that still count first fit into the rest.
      local offset = from
      if count > rest then
        offset = max(from, width - floor(rest * width / count))
      end
      if offset < width then
        return step * width - into + offset
      end
    end
  end
  return (buckets + 1) * width - into
end

local function available(key, p)
  local current, into = current_bucket(p)
  local counts, off, width_us = {}, 0, p[3] * p[5]
  for j = 1, p[2] + 1 do
    counts[j] = 0
  end
  local value = call('GET', key)
  if value then
    local width, newest, list = match(value, '^(%d+)@(%d+):([%d,]+)$')
    if not width or #width > 16 or #newest > 16 then
      foreign(key, 'not a row of buckets, "width@number:count,..."')
    end
    width, newest = tonumber(width), tonumber(newest)
    if width ~= width_us then
      off = 1
    elseif newest > current then
      -- The clock stepped back: the newest bucket is the current one.
      newest, off = current, 2
    end
    for count in string.gmatch(list, '%d+') do
      if #count > 16 then
        foreign(key, 'not a row of buckets, "width@number:count,..."')
      end
      local j = 1 + current - (width == width_us and newest or min(current, floor(((newest + 1) * width - 1) / width_us)))
      if j > p[2] + 1 then
        break
      end
      counts[j], newest = counts[j] + tonumber(count), newest - 1
    end
  end
  local used = weighed(p, counts[p[2] + 1], into)
  for j = 1, p[2] do
    used = used + counts[j]
  end
  return p[1] - used, counts, used, off
end

-- When a bucket has left the window, in ms since the epoch.
local function expires_ms(p, number)
  return ceil((number + p[2] + 1) * p[3] / p[4])
end

local function write(key, p, counts)
  local current = current_bucket(p)
  local last = #counts
  while last > 1 and counts[last] == 0 do
    last = last - 1
  end
  local list = {}
  for j = 1, last do
    list[j] = format('%d', counts[j])
  end
  local head = format('%d@%d:', p[3] * p[5], current)
  call('SET', key, head .. table.concat(list, ','), 'PXAT', format('%d', expires_ms(p, current)))
end

local function charge(key, p, counts, used, off, units)
  counts[1] = counts[1] + units
  write(key, p, counts)
  return counts, used + units, 0
end

local function refund(key, p, counts, used, off, charged_at, window_id, remaining, want)
  if off == 2 or window_id and window_id ~= current_bucket(p) then
    return 0, counts, used, off
  end
  local refunded = min(want, remaining, counts[1])
  if refunded > 0 then
    counts[1] = counts[1] - refunded
    write(key, p, counts)
  end
  return refunded, counts, used - refunded, off
end

local function repair(key, p)
  local expires = expiry(key)
  if expires == -2 then
    return
  end
  -- A later entry of the call may have charged since.
  local _, counts, _, off = available(key, p)
  local current, newest = current_bucket(p), 1
  while newest <= p[2] and counts[newest] == 0 do
    newest = newest + 1
  end
  if off > 0 then
    write(key, p, counts)
    return
  end
  -- A key without a TTL, or with that of another number of buckets; one that was moved expires a ms or two later.
  local expected = expires_ms(p, current - newest + 1)
  if expires < expected or expires > expires_ms(p, current) + 2 then
    call('PEXPIREAT', key, format('%d', expected))
  end
end

-- The units used, and after how many us `cost` fits and all is free.
local function snapshot(key, p, counts, used, off, cost)
  local into_tick = now - floor(now / p[5]) * p[5]
  local fits_after, free_after = 0, 0
  if used > p[1] - cost and cost <= p[1] then
    fits_after = ticks_until(p, counts, p[1] - cost) * p[5] - into_tick
  end
  if used > 0 then
    free_after = ticks_until(p, counts, 0) * p[5] - into_tick
  end
  return used, fits_after, free_after
end

return { available = available, charge = charge, refund = refund, repair = repair, snapshot = snapshot }

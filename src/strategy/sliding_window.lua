-- Sliding window. State: counters of the newest buckets, the newest first, behind their width in us and the number of the
-- newest since the epoch: "width@number:count,count,...". Buckets of another width, which the policy had before, count in
-- those of now in which they end.
--
-- p: 1 requests, 2 buckets, 3 width of a bucket in units of time, 4 units of time per ms, 5 us per unit of time
-- state: counts (the current bucket first), used, off (1: the buckets are of another width, 2: the newest lies ahead)
-- luacheck: read globals call format now floor ceil min max match foreign expiry

-- The current bucket, and how far into it now is, rounded down to whole units of time.
local function current_bucket(p)
  local units = floor(now / p[5])
  local i = floor(units / p[3])
  return i, units - i * p[3]
end

-- How many units of the oldest bucket still count, rounded up. Its count may be that of a larger quota: more than any debt
-- of this one counts as twice the requests.
local function weighed(p, count, into)
  local inside, max_debt = p[3] - into, 2 * p[1]
  if count > max_debt and inside > floor(max_debt * p[3] / count) then
    return max_debt
  end
  return ceil(count * inside / p[3])
end

local function available(key, p)
  local i, into = current_bucket(p)
  local counts, off, own_width = {}, 0, p[3] * p[5]
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
    if width ~= own_width then
      off = 1
    elseif newest > i then
      -- The clock stepped back: the newest bucket is the current one.
      newest, off = i, 2
    end
    for count in string.gmatch(list, '%d+') do
      if #count > 16 then
        foreign(key, 'not a row of buckets, "width@number:count,..."')
      end
      local j = 1 + i - (width == own_width and newest or min(i, floor(((newest + 1) * width - 1) / own_width)))
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
  local i = current_bucket(p)
  local last = #counts
  while last > 1 and counts[last] == 0 do
    last = last - 1
  end
  local list = {}
  for j = 1, last do
    list[j] = format('%d', counts[j])
  end
  local head = format('%d@%d:', p[3] * p[5], i)
  call('SET', key, head .. table.concat(list, ','), 'PXAT', format('%d', expires_ms(p, i)))
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
  local ends = expiry(key)
  if ends == -2 then
    return
  end
  -- A later entry of the call may have charged since.
  local _, counts, _, off = available(key, p)
  local i, newest = current_bucket(p), 1
  while newest <= p[2] and counts[newest] == 0 do
    newest = newest + 1
  end
  if off > 0 then
    write(key, p, counts)
    return
  end
  -- A key without a TTL, or with that of another number of buckets; one that was moved expires a ms or two later.
  local last = expires_ms(p, i - newest + 1)
  if ends < last or ends > expires_ms(p, i) + 2 then
    call('PEXPIREAT', key, format('%d', last))
  end
end

-- After how many units of time no more than `most` are used, if there are no other requests.
local function earliest(p, counts, most)
  local _, into = current_bucket(p)
  local b, width = p[2], p[3]
  for step = 0, b do
    local whole = 0
    for j = 1, b - step do
      whole = whole + counts[j]
    end
    local count, rest = counts[b + 1 - step], most - whole
    local from = step == 0 and into or 0
    if rest >= 0 then
      -- The first place in this bucket where the units that still count fit into the rest.
      local place = from
      if count > rest then
        place = max(from, width - floor(rest * width / count))
      end
      if place < width then
        return step * width - into + place
      end
    end
  end
  return (b + 1) * width - into
end

-- The units used, and after how many us `cost` fits and all is free.
local function snapshot(key, p, counts, used, off, cost)
  local part = now - floor(now / p[5]) * p[5]
  local fits, free = 0, 0
  if used > p[1] - cost and cost <= p[1] then
    fits = earliest(p, counts, p[1] - cost) * p[5] - part
  end
  if used > 0 then
    free = earliest(p, counts, 0) * p[5] - part
  end
  return used, fits, free
end

return { available = available, charge = charge, refund = refund, repair = repair, snapshot = snapshot }

-- Sliding window. State: counters of the newest buckets, the newest first, behind their width in us and the newest one's
-- number since the epoch: "width@number:count,count,...". Buckets of another width, which the policy had before, count in
-- those at hand in which they end.
--
-- p: 1 requests, 2 buckets, 3 width of a bucket in units of time, 4 units of time per ms, 5 us per unit of time
-- state: counts (the bucket at hand first), used, off (1: the buckets are of another width, 2: the newest lies ahead)
-- luacheck: read globals call format now floor ceil min max match foreign expiry

-- Where we are: the bucket at hand, and how far into it, rounded down to whole units of time.
local function bucket(p)
  local units = floor(now / p[5])
  local i = floor(units / p[3])
  return i, units - i * p[3]
end

-- What the oldest bucket still weighs, rounded up. Its count may be that of a larger quota: what would weigh more than any debt
-- of this one weighs twice the requests.
local function weighed(p, count, into)
  local inside, most = p[3] - into, 2 * p[1]
  if count > most and inside > floor(most * p[3] / count) then
    return most
  end
  return ceil(count * inside / p[3])
end

local function available(key, p)
  local i, into = bucket(p)
  local counts, off, own = {}, 0, p[3] * p[5]
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
    if width ~= own then
      off = 1
    elseif newest > i then
      -- the clock stepped back: the newest bucket is the one at hand
      newest, off = i, 2
    end
    for count in string.gmatch(list, '%d+') do
      if #count > 16 then
        foreign(key, 'not a row of buckets, "width@number:count,..."')
      end
      local number = newest
      if width ~= own then
        number = min(i, floor(((newest + 1) * width - 1) / own))
      end
      local j = 1 + i - number
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
local function gone(p, number)
  return ceil((number + p[2] + 1) * p[3] / p[4])
end

local function write(key, p, counts)
  local i = bucket(p)
  local last = #counts
  while last > 1 and counts[last] == 0 do
    last = last - 1
  end
  local list = {}
  for j = 1, last do
    list[j] = format('%d', counts[j])
  end
  local head = format('%d@%d:', p[3] * p[5], i)
  call('SET', key, head .. table.concat(list, ','), 'PXAT', format('%d', gone(p, i)))
end

local function charge(key, p, counts, used, off, units)
  counts[1] = counts[1] + units
  write(key, p, counts)
  return counts, used + units, 0
end

local function refund(key, p, counts, used, off, charged_at, window_id, remaining, want)
  if off == 2 or window_id and window_id ~= bucket(p) then
    return 0, counts, used, off
  end
  local back = min(want, remaining, counts[1])
  if back > 0 then
    counts[1] = counts[1] - back
    write(key, p, counts)
  end
  return back, counts, used - back, off
end

local function repair(key, p)
  local ends = expiry(key)
  if ends == -2 then
    return
  end
  -- what came later in the same trip may have charged since
  local _, counts, _, off = available(key, p)
  local i, newest = bucket(p), 1
  while newest <= p[2] and counts[newest] == 0 do
    newest = newest + 1
  end
  if off > 0 then
    write(key, p, counts)
    return
  end
  -- a key without an end, or with that of another number of buckets; one that was moved ends a ms or two later
  local last = gone(p, i - newest + 1)
  if ends < last or ends > gone(p, i) + 2 then
    call('PEXPIREAT', key, format('%d', last))
  end
end

-- After how many units of time no more than `most` are used, were nobody else to ask.
local function earliest(p, counts, most)
  local _, into = bucket(p)
  local b, width = p[2], p[3]
  for step = 0, b do
    local whole = 0
    for j = 1, b - step do
      whole = whole + counts[j]
    end
    local count, rest = counts[b + 1 - step], most - whole
    local from = step == 0 and into or 0
    if rest >= 0 then
      -- the first place in this bucket where what is weighed fits into the rest
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

-- used, after how many us `cost` fits, after how many us all is free
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

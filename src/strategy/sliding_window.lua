-- Sliding window. State: counters of the newest buckets, the newest first, behind the newest one's number since the epoch:
-- "number:count,count,...".
--
-- p: 1 requests, 2 buckets, 3 width of a bucket in units of time, 4 units of time per ms, 5 us per unit of time
-- state: counts (the bucket at hand first), used, off (1: the newest bucket lies ahead)

-- Where we are: the bucket at hand, and how far into it, rounded down to whole units of time.
local function bucket(p)
  local units = floor(now / p[5])
  local i = floor(units / p[3])
  return i, units - i * p[3]
end

-- What the oldest bucket still weighs, rounded up.
local function weighed(p, count, into)
  return ceil(count * (p[3] - into) / p[3])
end

local function room(key, p)
  local i, into = bucket(p)
  local counts, off, newest = {}, 0, i
  for j = 1, p[2] + 1 do
    counts[j] = 0
  end
  local value = call('GET', key)
  if value then
    local number, list = match(value, '^(%d+):([%d,]+)$')
    if not number or #number > 16 then
      foreign(key, 'not a row of buckets, "number:count,..."')
    end
    newest = tonumber(number)
    if newest > i then
      -- the clock stepped back: the newest bucket is the one at hand
      newest, off = i, 1
    end
    local j = 1 + i - newest
    for count in string.gmatch(list, '%d+') do
      if #count > 16 then
        foreign(key, 'not a row of buckets, "number:count,..."')
      end
      if j > p[2] + 1 then
        break
      end
      counts[j], j = tonumber(count), j + 1
    end
  end
  local used = weighed(p, counts[p[2] + 1], into)
  for j = 1, p[2] do
    used = used + counts[j]
  end
  return p[1] - used, counts, used, off
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
  -- the bucket at hand counts until it has left the window
  local ends = floor((i + p[2] + 1) * p[3] / p[4])
  call('SET', key, format('%d:', i) .. table.concat(list, ','), 'PXAT', format('%d', ends))
end

local function take(key, p, counts, used, off, units)
  counts[1] = counts[1] + units
  write(key, p, counts)
  return counts, used + units, 0
end

local function give(key, p, counts, used, off, at, mark, left, want)
  if off == 1 or mark and mark ~= bucket(p) then
    return 0, counts, used, off
  end
  local back = min(want, left, counts[1])
  if back > 0 then
    counts[1] = counts[1] - back
    write(key, p, counts)
  end
  return back, counts, used - back, 0
end

local function mend(key, p, counts, used, off)
  if off == 1 then
    write(key, p, counts)
  else
    outlive(key, ceil((p[2] + 1) * p[3] / p[4]))
  end
end

-- After how many units of time no more than `most` are used, were nobody else to ask.
local function earliest(p, counts, most)
  local i, into = bucket(p)
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
local function look(key, p, counts, used, off, cost)
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

return { room = room, take = take, give = give, mend = mend, look = look }

-- Sliding log. State: a list of the instants of the charged units, in us since the epoch, the oldest first. Those older
-- than the period don't count, and go with the next charge.
--
-- p: 1 requests, 2 period in us
-- state: count, old (how many entries no longer count), ahead (1: the newest lies ahead of now)
-- luacheck: read globals call format now now_ms floor ceil min max abs number expiry

-- How many entries no longer count: they stand first.
local function outdated(key, p, len)
  local low, high = 0, len
  while low < high do
    local middle = floor((low + high) / 2)
    if number(key, call('LINDEX', key, middle), 16) <= now - p[2] then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

local function available(key, p)
  local len = call('LLEN', key)
  if len == 0 then
    return p[1], 0, 0, 0
  end
  local ahead = number(key, call('LINDEX', key, -1), 16) > now and 1 or 0
  local old = number(key, call('LINDEX', key, 0), 16) <= now - p[2] and outdated(key, p, len) or 0
  return p[1] - (len - old), len - old, old, ahead
end

-- The clock stepped back: what would happen only later happened now.
local function settle(key)
  local log = call('LRANGE', key, 0, -1)
  for i = #log, 1, -1 do
    if number(key, log[i], 16) <= now then
      break
    end
    call('LSET', key, i - 1, format('%d', now))
  end
end

local function write(key, p, units)
  local entry, entries = format('%d', now), {}
  for i = 1, units do
    entries[#entries + 1] = entry
    -- more would not fit on the stack
    if #entries == 1000 or i == units then
      call('RPUSH', key, unpack(entries))
      entries = {}
    end
  end
  local ok, why = pcall(call, 'PEXPIREAT', key, format('%d', ceil((now + p[2]) / 1000)))
  if not ok then
    -- a log that never ends would stay for good
    pcall(call, 'LTRIM', key, 0, -1 - units)
    error(why, 0)
  end
end

local function charge(key, p, count, old, ahead, units)
  -- first, while the newest entry still shows where to begin
  if ahead == 1 then
    settle(key)
  end
  write(key, p, units)
  if old > 0 then
    call('LTRIM', key, old, -1)
  end
  return count + units, 0, 0
end

local function refund(key, p, count, old, ahead, charged_at, _, remaining, want)
  local back = 0
  if charged_at > now - p[2] then
    back = min(want, remaining)
    if back > 0 then
      back = call('LREM', key, -back, format('%d', charged_at))
    end
  end
  return back, count - back, old, ahead
end

local function repair(key, p, _, _, ahead)
  if ahead == 1 then
    settle(key)
  end
  -- the log ends with its newest entry, also where the period was another one when that was written
  local newest = call('LINDEX', key, -1)
  if newest then
    local last = max(ceil((tonumber(newest) + p[2]) / 1000), now_ms + 1)
    -- a key that was moved ends a millisecond or two later
    if abs(expiry(key) - last) > 2 then
      call('PEXPIREAT', key, format('%d', last))
    end
  end
end

-- count, when so many of the oldest are gone that `cost` fits, when all are gone
local function snapshot(key, p, count, old, ahead, cost)
  local len, fits, gone = old + count, 0, 0
  local function ends(index)
    -- a log that was just reset is told as it stood, its times at most
    return min(now, tonumber(call('LINDEX', key, index) or now)) + p[2]
  end
  if count > 0 then
    gone = ends(len - 1)
    local over = count + cost - p[1]
    if over > 0 and cost <= p[1] then
      fits = ends(old + over - 1)
    end
  end
  return count, fits, gone
end

return { available = available, charge = charge, refund = refund, repair = repair, snapshot = snapshot }

-- Sliding log. State: a list of the instants of the charged units, in us since the epoch, the oldest first. Those older
-- than the period have expired: they no longer count, and the next charge removes them.
--
-- p: 1 requests, 2 period in us
-- state: count, expired (how many entries have), ahead (1: the newest lies ahead of now)
-- luacheck: read globals call format now now_ms floor ceil min max abs number expiry

-- How many entries have expired.
local function expired_len(key, p, len)
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
  local expired = number(key, call('LINDEX', key, 0), 16) <= now - p[2] and expired_len(key, p, len) or 0
  return p[1] - (len - expired), len - expired, expired, ahead
end

-- The clock stepped back: charges of a later time count as charges of now.
local function end_at_now(key)
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
    -- More would not fit on the stack.
    if #entries == 1000 or i == units then
      call('RPUSH', key, unpack(entries))
      entries = {}
    end
  end
  local ok, why = pcall(call, 'PEXPIREAT', key, format('%d', ceil((now + p[2]) / 1000)))
  if not ok then
    -- A log that never expires would stay for good.
    pcall(call, 'LTRIM', key, 0, -1 - units)
    error(why, 0)
  end
end

local function charge(key, p, count, expired, ahead, units)
  -- First, while the newest entry still shows where to begin.
  if ahead == 1 then
    end_at_now(key)
  end
  write(key, p, units)
  if expired > 0 then
    call('LTRIM', key, expired, -1)
  end
  return count + units, 0, 0
end

local function refund(key, p, count, expired, ahead, charged_at, _, remaining, want)
  local refunded = 0
  if charged_at > now - p[2] then
    refunded = min(want, remaining)
    if refunded > 0 then
      refunded = call('LREM', key, -refunded, format('%d', charged_at))
    end
  end
  return refunded, count - refunded, expired, ahead
end

local function repair(key, p, _, _, ahead)
  if ahead == 1 then
    end_at_now(key)
  end
  -- The log expires with its newest entry, also where the period was another one when that was written.
  local newest = call('LINDEX', key, -1)
  if newest then
    local expected = max(ceil((tonumber(newest) + p[2]) / 1000), now_ms + 1)
    -- A key that was moved expires a ms or two later.
    if abs(expiry(key) - expected) > 2 then
      call('PEXPIREAT', key, format('%d', expected))
    end
  end
end

-- The count, when enough entries will have expired for `cost`, and when all will have.
local function snapshot(key, p, count, expired, ahead, cost)
  local len, fits_at, free_at = expired + count, 0, 0
  local function expires_at(index)
    -- A log that was just reset counts as it was, with the latest instants it may have had.
    return min(now, tonumber(call('LINDEX', key, index) or now)) + p[2]
  end
  if count > 0 then
    free_at = expires_at(len - 1)
    local over = count + cost - p[1]
    if over > 0 and cost <= p[1] then
      fits_at = expires_at(expired + over - 1)
    end
  end
  return count, fits_at, free_at
end

return { available = available, charge = charge, refund = refund, repair = repair, snapshot = snapshot }

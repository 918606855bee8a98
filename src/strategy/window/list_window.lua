-- List window: a fixed window that records callers. State: a list, of a header and one caller per charged unit, and a TTL
-- that is the window. With the header the window stays open when all units are refunded.
--
-- p: 1 requests, 2 period in ms
-- state: count, ends (of the window, in us since the epoch), fresh (1: no window is open, 2: one is, and its TTL has to be set,
--    3: one has ended, and its list still exists)
-- luacheck: read globals call format now now_ms next_ms ceil min max abs foreign expiry

local header = '='

local function available(key, p)
  local first = call('LINDEX', key, 0)
  if first and first ~= header then
    foreign(key, 'not a list of callers')
  end
  local opened = (next_ms + p[2]) * 1000
  if not first then
    return p[1], 0, opened, 1
  end
  local count, expires_ms = call('LLEN', key) - 1, expiry(key)
  if expires_ms < 0 or expires_ms > next_ms + p[2] then
    -- A list that would never expire, or outlast its window, expires one period from now.
    return p[1] - count, count, opened, 2
  end
  local ends = expires_ms * 1000
  if ends <= now then
    return p[1], 0, opened, 3
  end
  return p[1] - count, count, ends, 0
end

-- When the key expires, in ms since the epoch. A TTL that has passed would delete the key.
local function expires_ms(ends)
  return max(ends / 1000, now_ms + 1)
end

local function charge(key, p, count, ends, fresh, units, callers, each)
  if fresh == 3 then
    call('DEL', key)
  end
  local entries = {}
  if fresh == 1 or fresh == 3 then
    entries[1] = header
  end
  for unit = 1, units do
    entries[#entries + 1] = callers[ceil(unit / each)]
    -- More would not fit on the stack.
    if #entries == 1000 then
      call('RPUSH', key, unpack(entries))
      entries = {}
    end
  end
  if #entries > 0 then
    call('RPUSH', key, unpack(entries))
  end
  if fresh > 0 then
    local ok, why = pcall(call, 'PEXPIREAT', key, format('%d', expires_ms(ends)))
    if not ok then
      -- A list that never expires would reject all requests.
      pcall(call, 'LTRIM', key, 0, -1 - units)
      error(why, 0)
    end
  end
  return count + units, ends, 0
end

local function refund(key, p, count, ends, fresh, charged_at, window_id, remaining, want, caller)
  -- A window is identified by its end. A key that was moved expires a ms or two later, so ends that are 2 ms apart are the
  -- same window. No window_id means the current window.
  if fresh > 0 or window_id and abs(ends - window_id) > min(2000, p[2] * 250) then
    return 0, count, ends, fresh
  end
  local refunded = min(want, remaining, count)
  if refunded > 0 then
    refunded = call('LREM', key, -refunded, caller)
  end
  return refunded, count - refunded, ends, fresh
end

local function repair(key, p, count, ends, fresh)
  if fresh == 2 then
    call('PEXPIREAT', key, format('%d', expires_ms(ends)))
  end
end

return { available = available, charge = charge, refund = refund, repair = repair }

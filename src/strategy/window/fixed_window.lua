-- Fixed window. State: a counter, and a TTL that is the window: it ends when the key's last millisecond begins.
--
-- p: 1 requests, 2 period in ms
-- state: count, ends (of the window, in us since the epoch), fresh (1: no window is open, 2: one is, and its TTL has to be set)
-- luacheck: read globals call format now now_ms next_ms min max abs number expiry

local function available(key, p)
  local count, ends = 0, 0
  local value = call('GET', key)
  if value then
    count = number(key, value, 16)
    local expires_ms = expiry(key)
    if expires_ms < 0 or expires_ms > next_ms + p[2] then
      -- A counter that would never expire, or outlast its window, expires one period from now.
      return p[1] - count, count, (next_ms + p[2]) * 1000, 2
    end
    ends = expires_ms * 1000
    if ends <= now then
      count, ends = 0, 0
    end
  end
  if ends == 0 then
    return p[1] - count, count, (next_ms + p[2]) * 1000, 1
  end
  return p[1] - count, count, ends, 0
end

local function write(key, count, ends, fresh)
  if fresh > 0 then
    -- A TTL that has passed would delete the key.
    call('SET', key, format('%d', count), 'PXAT', format('%d', max(ends / 1000, now_ms + 1)))
  else
    call('SET', key, format('%d', count), 'KEEPTTL')
  end
end

local function charge(key, p, count, ends, fresh, units)
  write(key, count + units, ends, fresh)
  return count + units, ends, 0
end

local function refund(key, p, count, ends, fresh, charged_at, window_id, remaining, want)
  -- A window is identified by its end. A key that was moved expires a ms or two later, so ends that are 2 ms apart are the
  -- same window. No window_id means the current window.
  if fresh == 1 or window_id and abs(ends - window_id) > min(2000, p[2] * 250) then
    return 0, count, ends, fresh
  end
  local refunded = min(want, remaining, count)
  if refunded > 0 then
    write(key, count - refunded, ends, fresh)
  end
  return refunded, count - refunded, ends, fresh
end

local function repair(key, p, count, ends, fresh)
  -- A window that has ended expires by itself.
  if fresh == 2 then
    call('PEXPIREAT', key, format('%d', ends / 1000))
  end
end

return { available = available, charge = charge, refund = refund, repair = repair }

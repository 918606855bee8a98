-- List window: a fixed window that records callers. State: a list, of a header and the callers, and a TTL that is the window. The
-- header is `=` and the units charged; with it the window stays open when all units are refunded. After a caller that was
-- charged more than one unit at once come `=` and its units.
--
-- p: 1 requests, 2 period in ms
-- state: count, ends (of the window, in us since the epoch), fresh (1: no window is open, 2: one is, and its TTL has to be set,
--    3: one has ended, and its list still exists)
-- luacheck: read globals call format now now_ms next_ms min max abs match pcall error unpack number foreign expiry

local function available(key, p)
  local header = call('LINDEX', key, 0)
  local opened = (next_ms + p[2]) * 1000
  if not header then
    return p[1], 0, opened, 1
  end
  local units = match(header, '^=(.*)$')
  if not units then
    foreign(key, 'not a list of callers')
  end
  local count, expires_ms = number(key, units, 15), expiry(key)
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

local function header_of(count)
  return format('=%d', count)
end

local function charge(key, p, count, ends, fresh, units, callers, each)
  local is_new = fresh == 1 or fresh == 3
  if fresh == 3 then
    call('DEL', key)
  end
  local pushed, entries, request, left = 0, {}, 0, units
  local function push()
    call('RPUSH', key, unpack(entries))
    pushed, entries = pushed + #entries, {}
  end
  if is_new then
    entries[1] = header_of(count + units)
  end
  local ok, why = pcall(function()
    while left > 0 do
      -- Requests of one caller after another have one entry.
      request = request + 1
      local caller, own = callers[request], min(each, left)
      while own < left and callers[request + 1] == caller do
        request, own = request + 1, min(own + each, left)
      end
      entries[#entries + 1] = caller
      if own > 1 then
        entries[#entries + 1] = header_of(own)
      end
      left = left - own
      -- More would not fit on the stack.
      if #entries >= 1000 then
        push()
      end
    end
    if #entries > 0 then
      push()
    end
    if not is_new then
      call('LSET', key, 0, header_of(count + units))
    end
    if fresh > 0 then
      call('PEXPIREAT', key, format('%d', expires_ms(ends)))
    end
  end)
  if not ok then
    -- Leaves nothing charged, and no list that never expires, which would reject all requests. Where nothing was written, nothing
    -- is now: after a write, a server whose memory is full would let this call write.
    if pushed > 0 and is_new then
      pcall(call, 'DEL', key)
    elseif pushed > 0 then
      pcall(call, 'LTRIM', key, 0, -1 - pushed)
      pcall(call, 'LSET', key, 0, header_of(count))
    end
    error(why, 0)
  end
  return count + units, ends, 0
end

local function refund(key, p, count, ends, fresh, charged_at, window_id, remaining, want, caller)
  -- A window is identified by its end. A key that was moved expires a ms or two later, so ends that are 2 ms apart are the
  -- same window. No window_id means the current window.
  if fresh > 0 or window_id and abs(ends - window_id) > min(2000, p[2] * 250) then
    return 0, count, ends, fresh
  end
  want = min(want, remaining, count)
  local left, most, removed = want, 1, 0
  while left > 0 do
    -- The caller's last charges, without those that were refunded already: as a rule, the last one has enough.
    local indexes = call('LPOS', key, caller, 'RANK', -1, 'COUNT', most)
    if #indexes == 0 then
      break
    end
    for i = 1, #indexes do
      local index = indexes[i]
      local own = match(call('LINDEX', key, index + 1) or '', '^=(%d+)$')
      local units = own and number(key, own, 15) or 1
      if left < units then
        call('LSET', key, index + 1, header_of(units - left))
        left = 0
        break
      end
      left = left - units
      for element = index, own and index + 1 or index do
        call('LSET', key, element, '')
        removed = removed + 1
      end
      if left == 0 then
        break
      end
    end
    most = 2 * most
  end
  if removed > 0 then
    call('LREM', key, -removed, '')
  end
  local refunded = want - left
  if refunded > 0 then
    call('LSET', key, 0, header_of(count - refunded))
  end
  return refunded, count - refunded, ends, fresh
end

local function repair(key, p, count, ends, fresh)
  if fresh == 2 then
    call('PEXPIREAT', key, format('%d', expires_ms(ends)))
  end
end

return { available = available, charge = charge, refund = refund, repair = repair }

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
    -- Leaves nothing charged, and no list that never expires, which would reject all requests. If nothing was pushed, nothing
    -- is written here either: after one write, a server whose memory is full accepts all others of the same script call.
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

-- Refunds up to `left` units of the caller's last charges, of which at most `charges` are read. Returns the units still to refund.
local function refund_each(key, caller, left, charges)
  local removed = 0
  for _, index in ipairs(call('LPOS', key, caller, 'RANK', -1, 'COUNT', charges)) do
    if left == 0 then
      break
    end
    local own = match(call('LINDEX', key, index + 1) or '', '^=(%d+)$')
    local units = own and number(key, own, 15) or 1
    if left < units then
      call('LSET', key, index + 1, header_of(units - left))
      left = 0
    else
      left = left - units
      for element = index, own and index + 1 or index do
        call('LSET', key, element, '')
        removed = removed + 1
      end
    end
  end
  if removed > 0 then
    call('LREM', key, -removed, '')
  end
  return left
end

-- The same for all of the caller's charges. If they are many, it is faster to rewrite the end of the list, back to the first
-- charge that is refunded.
local function refund_rest(key, caller, left)
  local last, read_len, kept, units = call('LLEN', key) - 1, 1000, {}, nil
  while left > 0 and last > 0 do
    local elements = call('LRANGE', key, max(1, last - read_len + 1), last)
    for i = #elements, 1, -1 do
      local own = match(elements[i], '^=(%d+)$')
      if own then
        units = number(key, own, 15)
      else
        local before = units or 1
        local gone = elements[i] == caller and min(left, before) or 0
        left, units = left - gone, nil
        if before - gone > 1 then
          kept[#kept + 1] = header_of(before - gone)
        end
        if before > gone then
          kept[#kept + 1] = elements[i]
        end
      end
    end
    last = last - #elements
  end
  if units then
    -- The units of the charge whose caller is the last element that stays.
    kept[#kept + 1] = header_of(units)
  end
  call('LTRIM', key, 0, last)
  local entries = {}
  for i = #kept, 1, -1 do
    entries[#entries + 1] = kept[i]
    if #entries == 1000 or i == 1 then
      call('RPUSH', key, unpack(entries))
      entries = {}
    end
  end
  return left
end

local function refund(key, p, count, ends, fresh, charged_at, window_id, remaining, want, caller)
  -- A window is identified by its end. A key that was moved expires a ms or two later, so ends that are 2 ms apart are the
  -- same window. No window_id means the current window.
  if fresh > 0 or window_id and abs(ends - window_id) > min(2000, p[2] * 250) then
    return 0, count, ends, fresh
  end
  want = min(want, remaining, count)
  -- As a rule, the caller's last charge has enough.
  local left = refund_each(key, caller, want, 1)
  if left > 0 then
    left = refund_each(key, caller, left, 500)
  end
  if left > 0 then
    left = refund_rest(key, caller, left)
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

-- Ban. State: five integers: since when it stands so, until when the key is banned, when the window of refusals ends (both
-- in us since the epoch, 0 for none), how many refusals it holds, and how often the key was banned.
--
-- p: 1 refusals, 2 period in us, 3 the first ban in us, 4 the longest, 5 a ban by hand in us (0: none)
-- state: till, marks (100 x refusals + times banned), ends
-- luacheck: read globals call format now now_ms floor ceil min max abs match foreign number expiry

local function length(p, times)
  local us = p[3]
  for _ = 2, times do
    if us >= p[4] then
      break
    end
    us = us * 2
  end
  return min(us, p[4])
end

-- When nothing is left to be known of a key.
local function gone(p, till, times, ends)
  if till == 0 then
    return ends
  end
  return max(ends, till + max(times > 0 and length(p, times) or 0, p[2]))
end

local function available(key, p)
  local value = call('GET', key)
  if not value then
    return p[1], 0, 0, 0
  end
  local since, till, ends, count, times = match(value, '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
  if not since then
    foreign(key, 'not five whole numbers')
  end
  till, ends = number(key, till, 16), number(key, ends, 16)
  count, times = number(key, count, 7), number(key, times, 2)
  -- the clock stepped back: what was still to come then is so now
  local ahead = max(0, number(key, since, 16) - now)
  till, ends = max(0, till - ahead), min(ends - ahead, now + p[2])
  if till > now then
    return 0, till, times, 0
  end
  if ends <= now then
    count, ends = 0, 0
  end
  if gone(p, till, times, 0) <= now then
    -- not 0: there is a key, that may have to be ended
    till, times = 1, 0
  end
  return max(1, p[1] - count), till, count * 100 + times, ends
end

local function last_ms(p, till, marks, ends)
  return max(ceil(gone(p, till, marks % 100, ends) / 1000), now_ms + 1)
end

local function write(key, p, till, marks, ends)
  local value = format('%d %d %d %d %d', now, till, ends, floor(marks / 100), marks % 100)
  call('SET', key, value, 'PXAT', format('%d', last_ms(p, till, marks, ends)))
end

local function repair(key, p, till, marks, ends)
  if till > 0 or ends > 0 then
    local at = expiry(key)
    -- a key that was moved ends a millisecond or two later
    if at ~= -2 and abs(at - last_ms(p, till, marks, ends)) > 2 then
      write(key, p, till, marks, ends)
    end
  end
end

local function charge(key, p, till, marks, ends, units)
  local count, times = floor(marks / 100) + units, marks % 100
  if p[5] > 0 then
    till, count, ends = now + p[5], 0, 0
  elseif till > now then
    -- Nothing is charged; what is written may date from before the clock stepped back.
    pcall(repair, key, p, till, marks, ends)
    return till, marks, ends
  elseif count < p[1] then
    ends = ends > 0 and ends or now + p[2]
  else
    if times == 0 or length(p, times) < p[4] then
      times = times + 1
    end
    till, count, ends = now + length(p, times), 0, 0
  end
  marks = count * 100 + times
  write(key, p, till, marks, ends)
  return till, marks, ends
end

-- A ban that has begun is lifted by a reset alone.
local function refund(key, p, till, marks, ends, _, _, remaining, want)
  local back = till > now and 0 or min(want, remaining, floor(marks / 100))
  if back > 0 then
    marks = marks - back * 100
    write(key, p, till, marks, ends)
  end
  return back, till, marks, ends
end

return { available = available, charge = charge, refund = refund, repair = repair }

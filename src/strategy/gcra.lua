-- Generic cell rate algorithm. State: the theoretical arrival time, in 0.1 ns, as a decimal integer, which Redis keeps
-- without a string. Since 2020 those are more than a Lua number can hold, so there are two forms:
-- - far, of rules that take long to refill: since 2020; handled as seconds and a fraction;
-- - near, of all others: within a round of 450,000 s, times two. One more says that the key doesn't end then, but with the
--   lap of 60 s that it lies in: as long as it does, a single INCRBY takes more and tells what was there.
--
-- p: 1 burst, 2 emission interval, 3 tolerance (burst x interval), 4 0.1 ns per unit of time, 5 units per second,
--    6 units per ms, 7 units per us, 8 whether its form is near (1): then a unit is 0.1 ns, and the deepest debt 200,000 s
-- state: ahead, how far the theoretical arrival time lies ahead of now, in units of time; kind (1: it was further and is
--   to be cut, 2: the key ends with a lap)

local second, round, lap, farthest = 1e10, 45e14, 60e10, 2e15
local at_s, at_f = now_s - 1577836800, now_us * 10000
-- In the round at hand.
local at, round_ms = now_s % 450000 * second + at_f, (now_s - now_s % 450000) * 1000

-- How far ahead a near arrival time lies, in 0.1 ns. No debt is as deep as half a round.
local function unwind(tat)
  local ahead = tat - at
  if ahead > farthest then
    return ahead - round
  elseif ahead <= farthest - round then
    return ahead + round
  end
  return ahead
end

local function room(key, p)
  local tat = call('GET', key)
  if not tat then
    return p[1], 0, 0
  end
  local digits = #tat
  if digits > 19 or not find(tat, '^%d+$') then
    foreign(key, 'not a whole number of at most 19 digits')
  end
  local ahead, kind
  if digits < 17 then
    tat = tonumber(tat)
    kind = tat % 2 * 2
    ahead = unwind((tat - tat % 2) / 2) / p[4]
  else
    ahead, kind = (sub(tat, 1, -11) - at_s) * p[5] + (sub(tat, -10) - at_f) / p[4], 0
  end
  -- up to a whole number
  ahead = ahead + -ahead % 1
  local free = p[3] - ahead
  if ahead < 0 then
    ahead, free = 0, p[3]
  elseif free < -p[3] then
    -- further than any debt: the clock stepped back, or the quota was another one
    ahead, free, kind = p[3], 0, 1
  end
  return (free - free % p[2]) / p[2], ahead, kind
end

-- When the lap ends, in ms since the epoch.
local function lap_end(ahead)
  local tat = at + ahead
  return format('%d', round_ms + (tat - tat % lap + lap) / 1e7)
end

-- At least a lap into a round: whatever is undone doesn't fall below zero.
local function write_near(key, ahead, kind)
  local value = ((at + ahead - lap) % round + lap) * 2
  if kind == 2 then
    call('SET', key, format('%d', value + 1), 'PXAT', lap_end(ahead))
  else
    call('SET', key, format('%d', value), 'PXAT', format('%d', next_ms + ceil(ahead / 1e7)))
  end
end

-- Quotients are below 2^52 / 10^10, so that the rests are exact.
local function write(key, p, ahead, kind)
  if p[8] == 1 then
    return write_near(key, ahead, kind)
  end
  local f, r = ahead % p[5], ahead % p[6]
  local s, ms = (ahead - f) / p[5], (ahead - r) / p[6]
  f = at_f + f * p[4]
  if f >= second then
    s, f = s + 1, f - second
  end
  if r > 0 then
    ms = ms + 1
  end
  call('SET', key, format('%d%010d', at_s + s, f), 'PXAT', format('%d', next_ms + ms))
end

local function take(key, p, ahead, kind, _, units)
  ahead = ahead + units * p[2]
  write(key, p, ahead, kind)
  return ahead, kind
end

-- To the fraction: what time has not given back of so many units. What is left of the last of them counts as one.
local function refund(key, p, ahead, kind, _, at, _, left, want)
  local back = max(0, min(want * p[2], left * p[2] - max(0, now - at) * p[7]))
  if back > 0 and ahead > 0 then
    ahead = max(0, ahead - back)
    write(key, p, ahead, kind)
  end
  return ceil(back / p[2]), ahead, kind
end

local function mend(key, p, ahead, kind)
  if kind == 1 then
    write(key, p, ahead)
  elseif kind == 0 then
    outlive(key, ceil(ahead / p[6]))
  else
    local ends, last = expiry(key), lap_end(ahead)
    if ends == -1 or ends > tonumber(last) then
      call('PEXPIREAT', key, last)
    end
  end
end

return { room = room, take = take, refund = refund, mend = mend }

-- Generic cell rate algorithm. State: the theoretical arrival time, in 0.1 ns since 2020, as a decimal int64, which
-- Redis keeps without a string. One Lua number can't hold it, so it is handled as seconds and a fraction.
--
-- p: 1 burst, 2 emission interval, 3 tolerance (burst x interval), 4 0.1 ns per unit of time, 5 units per second,
--    6 units per ms, 7 units per us
-- state: ahead, how far the theoretical arrival time lies ahead of now, in units of time; cut (1: it was further)

local second = 1e10
local at_s, at_f = now_s - 1577836800, now_us * 10000

local function room(key, p)
  local tat = call('GET', key)
  if not tat then
    return p[1], 0, 0
  end
  local digits = #tat
  if digits > 19 or not find(tat, '^%d+$') then
    foreign(key, 'not a whole number of at most 19 digits')
  end
  local ahead, cut = ((digits > 10 and sub(tat, 1, -11) or 0) - at_s) * p[5] + (sub(tat, -10) - at_f) / p[4], 0
  -- up to a whole number
  ahead = ahead + -ahead % 1
  local free = p[3] - ahead
  if ahead < 0 then
    ahead, free = 0, p[3]
  elseif free < -p[3] then
    -- further than any debt: the clock stepped back, or the quota was another one
    ahead, free, cut = p[3], 0, 1
  end
  return (free - free % p[2]) / p[2], ahead, cut
end

-- Quotients are below 2^52 / 10^10, so that the rests are exact.
local function write(key, p, ahead)
  local f, r = ahead % p[5], ahead % p[6]
  local s, ms = (ahead - f) / p[5], (ahead - r) / p[6]
  f = at_f + f * p[4]
  if f >= second then
    s, f = s + 1, f - second
  end
  if r > 0 then
    ms = ms + 1
  end
  call('SET', key, format('%d%010d', at_s + s, f), 'PXAT', format('%d', now_ms + ms))
end

local function take(key, p, ahead, _, _, units)
  ahead = ahead + units * p[2]
  write(key, p, ahead)
  return ahead, 0
end

local function give(key, p, ahead, _, _, at, _, left, want)
  local drained = ceil(max(0, now - at) * p[7] / p[2])
  local back = max(0, min(want, left - drained))
  if back > 0 and ahead > 0 then
    ahead = max(0, ahead - back * p[2])
    write(key, p, ahead)
  end
  return back, ahead, 0
end

-- What time has not given back, parts of a unit included.
local function withdraw(key, p, ahead, _, _, at, _, left, want)
  local back = max(0, min(want * p[2], left * p[2] - max(0, now - at) * p[7]))
  if back > 0 and ahead > 0 then
    ahead = max(0, ahead - back)
    write(key, p, ahead)
  end
  return floor(back / p[2]), ahead, 0
end

local function mend(key, p, ahead, cut)
  if cut == 1 then
    write(key, p, ahead)
  else
    outlive(key, ceil(ahead / p[6]))
  end
end

return { room = room, take = take, give = give, withdraw = withdraw, mend = mend }

-- Ban. State: five integers: when it was written, until when the key is banned, when the window of rejections ends (all in us
-- since the epoch, 0 for none), how many rejections the window holds, and how often the key was banned.
--
-- p: 1 max_rejections, 2 period, 3 first_ban, 4 max_ban, 5 manual_ban (0: none, negative: at least so long); the times in us
-- state: banned_until, packed_counts (100 x rejections + bans), window_ends
-- luacheck: read globals call format now now_ms floor ceil min max abs match foreign number expiry

-- How long the last of so many bans lasts.
local function ban_length(p, bans)
  local length = p[3]
  for _ = 2, bans do
    if length >= p[4] then
      break
    end
    length = length * 2
  end
  return min(length, p[4])
end

-- When a key expires, in us since the epoch.
local function expires_at(p, banned_until, bans, window_ends)
  if banned_until == 0 then
    return window_ends
  end
  return max(window_ends, banned_until + max(bans > 0 and ban_length(p, bans) or 0, p[2]))
end

local function available(key, p)
  local value = call('GET', key)
  if not value then
    return p[1], 0, 0, 0
  end
  local updated_at, banned_until, window_ends, rejections, bans = match(value, '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
  if not updated_at then
    foreign(key, 'not five whole numbers')
  end
  banned_until, window_ends = number(key, banned_until, 16), number(key, window_ends, 16)
  rejections, bans = number(key, rejections, 7), number(key, bans, 2)
  -- The clock stepped back: what was still to come then is still to come.
  local ahead = max(0, number(key, updated_at, 16) - now)
  banned_until, window_ends = max(0, banned_until - ahead), min(window_ends - ahead, now + p[2])
  if banned_until > now then
    return 0, banned_until, bans, 0
  end
  if window_ends <= now then
    rejections, window_ends = 0, 0
  end
  if expires_at(p, banned_until, bans, 0) <= now then
    -- Not 0: there is a key, which may have to expire.
    banned_until, bans = 1, 0
  end
  return max(1, p[1] - rejections), banned_until, rejections * 100 + bans, window_ends
end

local function expires_ms(p, banned_until, packed_counts, window_ends)
  return max(ceil(expires_at(p, banned_until, packed_counts % 100, window_ends) / 1000), now_ms + 1)
end

local function write(key, p, banned_until, packed_counts, window_ends)
  local value = format('%d %d %d %d %d', now, banned_until, window_ends, floor(packed_counts / 100), packed_counts % 100)
  call('SET', key, value, 'PXAT', format('%d', expires_ms(p, banned_until, packed_counts, window_ends)))
end

local function repair(key, p, banned_until, packed_counts, window_ends)
  if banned_until > 0 or window_ends > 0 then
    local expires = expiry(key)
    -- A key that was moved expires a ms or two later.
    if expires ~= -2 and abs(expires - expires_ms(p, banned_until, packed_counts, window_ends)) > 2 then
      write(key, p, banned_until, packed_counts, window_ends)
    end
  end
end

local function charge(key, p, banned_until, packed_counts, window_ends, units)
  local rejections, bans = floor(packed_counts / 100) + units, packed_counts % 100
  if p[5] ~= 0 then
    banned_until, rejections, window_ends = max(now + abs(p[5]), p[5] < 0 and banned_until or 0), 0, 0
  elseif banned_until > now then
    -- Nothing is charged, but the key may have been written before the clock stepped back.
    pcall(repair, key, p, banned_until, packed_counts, window_ends)
    return banned_until, packed_counts, window_ends
  elseif rejections < p[1] then
    window_ends = window_ends > 0 and window_ends or now + p[2]
  else
    if bans == 0 or ban_length(p, bans) < p[4] then
      bans = bans + 1
    end
    banned_until, rejections, window_ends = now + ban_length(p, bans), 0, 0
  end
  packed_counts = rejections * 100 + bans
  write(key, p, banned_until, packed_counts, window_ends)
  return banned_until, packed_counts, window_ends
end

-- A key that is banned holds no rejections: only a reset ends a ban.
local function refund(key, p, banned_until, packed_counts, window_ends, _, _, remaining, want)
  local refunded = banned_until > now and 0 or min(want, remaining, floor(packed_counts / 100))
  if refunded > 0 then
    packed_counts = packed_counts - refunded * 100
    write(key, p, banned_until, packed_counts, window_ends)
  end
  return refunded, banned_until, packed_counts, window_ends
end

return { available = available, charge = charge, refund = refund, repair = repair }

-- Sets, removes or ends one override, and counts the change.
--
-- KEYS: the overrides by field, the number of each field's last change, when fields were removed, the version.
-- ARGV: `set`, `restore` (unless it was set or removed meanwhile), `remove`, `remove_lost` or `end`; the field; the value (to end:
-- the value that has ended); how many overrides there may be; a text that no change ever had; for how many microseconds the change of a removed field is kept.
--
-- Returns 1 if it was changed, 0 if there was nothing to change, -1 if there are too many; the value before; the version before
-- and after; the time in microseconds.
local operation, field, value = ARGV[1], ARGV[2], ARGV[3]

-- How many removed fields are kept at most, and how many are dropped by one change.
local most_removed, dropped_at_once = 100000, 100

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local shown_now = string.format('%.0f', now)

local before = redis.call('HGET', KEYS[1], field)
local last_version = redis.call('GET', KEYS[4])
if operation == 'restore' and (before or redis.call('ZSCORE', KEYS[3], field)) then
  return { 0, before, last_version, last_version, shown_now }
elseif operation == 'set' or operation == 'restore' then
  if not before and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[4]) then
    return { -1, before, last_version, last_version, shown_now }
  end
elseif operation == 'end' and before ~= value or operation == 'remove' and not before then
  return { 0, before, last_version, last_version, shown_now }
elseif operation == 'end' and now < (tonumber(string.match(value, '^%S+ (%S+) ')) or 0) then
  -- The process is ahead of this clock.
  return { 0, before, last_version, last_version, shown_now }
end

local id, number, floor = string.match(last_version or '', '^(%S+) (%d+) (%d+) ')
if id then
  number, floor = tonumber(number), tonumber(floor)
else
  -- No process can have read what was changed before.
  local last = redis.call('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')
  number = tonumber(last[2] or 0)
  id, floor = ARGV[5], number
end
-- By the time: a number that a failover has lost is not given to another change.
number = math.max(number + 1, now)

redis.call('ZADD', KEYS[2], number, field)
if operation == 'set' or operation == 'restore' then
  redis.call('HSET', KEYS[1], field, value)
  redis.call('ZREM', KEYS[3], field)
else
  redis.call('HDEL', KEYS[1], field)
  redis.call('ZADD', KEYS[3], now, field)
end

-- A process that has not read the changes up to the floor has to read all overrides.
local dropped = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now - ARGV[6], 'LIMIT', 0, dropped_at_once)
if #dropped == 0 and redis.call('ZCARD', KEYS[3]) > most_removed then
  dropped = redis.call('ZRANGE', KEYS[3], 0, dropped_at_once - 1)
end
for _, removed in ipairs(dropped) do
  floor = math.max(floor, tonumber(redis.call('ZSCORE', KEYS[2], removed) or 0))
  redis.call('ZREM', KEYS[2], removed)
  redis.call('ZREM', KEYS[3], removed)
end

local version = string.format('%s %d %d %s', id, number, floor, ARGV[5])
redis.call('SET', KEYS[4], version)
return { 1, before, last_version, version, shown_now }

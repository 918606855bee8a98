-- Sets or removes one override, and replaces the version.
--
-- KEYS: the overrides by field, their version.
-- ARGV: the field; the value, or an empty text to remove it; how many overrides there may be; the new version.
--
-- Returns `changed`, `ended` or `full`; the value before; the time in microseconds.
local field, value = ARGV[1], ARGV[2]

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local shown_now = string.format('%.0f', now)

local function has_ended(stored)
  local until_us = tonumber(string.match(stored, '^%S+ (%-?%d+) ') or '')
  return until_us and until_us <= now
end

local before = redis.call('HGET', KEYS[1], field)
if has_ended(value) then
  return { 'ended', before, shown_now }
elseif value == '' then
  redis.call('HDEL', KEYS[1], field)
else
  if not before and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[3]) then
    local all = redis.call('HGETALL', KEYS[1])
    for place = 1, #all, 2 do
      if has_ended(all[place + 1]) then
        redis.call('HDEL', KEYS[1], all[place])
      end
    end
    if redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[3]) then
      return { 'full', before, shown_now }
    end
  end
  redis.call('HSET', KEYS[1], field, value)
end
redis.call('SET', KEYS[2], ARGV[4])
return { 'changed', before, shown_now }

-- Reads the overrides that were changed after a certain change, in the order of their last changes.
--
-- KEYS: the overrides by field, the number of each field's last change, the version.
-- ARGV: the number of that change, and how many fields to read at most.
--
-- Returns the time in microseconds, the version, and the fields with their numbers and values, which are missing for removed ones.
local changed = redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. ARGV[1], '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[2])
local fields, numbers = {}, {}
for place = 1, #changed, 2 do
  fields[#fields + 1] = changed[place]
  numbers[#numbers + 1] = changed[place + 1]
end
-- Also without fields, so that a missing permission is found before it matters.
local values = redis.call('HMGET', KEYS[1], '', unpack(fields))
table.remove(values, 1)
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000000 + time[2])
return { now, redis.call('GET', KEYS[3]), fields, numbers, values }

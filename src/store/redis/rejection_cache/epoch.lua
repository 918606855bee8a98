-- Reads the epoch (see epoch.rs): the server's replication id, and the value of a key, behind its time in microseconds.
--
-- KEYS: the key. ARGV: a value that no key ever had, and its TTL in milliseconds. Returns nil where the user
-- may not run INFO.

-- It is missing, or has no TTL.
if redis.call('PTTL', KEYS[1]) < 0 then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
local value = redis.call('GET', KEYS[1])
if value and #value > 64 then
  -- A foreign one, which every process would read twice in each bound.
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  value = ARGV[1]
end
local info = redis.pcall('INFO', 'replication')
local id = type(info) == 'string' and string.match(info, 'master_replid:(%w+)')
local time = redis.call('TIME')
return value and id and string.format('%d%06d %s %s', time[1], time[2], id, value)

-- What every strategy's half may use. All numbers are integers below 2^53.

local pcall, error = pcall, error
local floor, ceil, min, max, abs = math.floor, math.ceil, math.min, math.max, math.abs
local sub, find, match = string.sub, string.find, string.match

-- Something that this library did not write stands under the key: leaves it alone.
local function foreign(key, why)
  error('FOREIGN ' .. why, 0)
end

local function number(key, text, digits)
  if #text > digits or not find(text, '^%d+$') then
    foreign(key, 'not a whole number of at most ' .. digits .. ' digits')
  end
  return tonumber(text)
end

-- When a key ends, in ms since the epoch (it still lives in that ms); -1 never, -2 no key.
local function expiry(key)
  if redis.REDIS_VERSION_NUM then
    return call('PEXPIRETIME', key)
  end
  -- Before 7.0 only the time to live can be had, from a clock that has moved on: late by a ms, never early.
  local ttl = call('PTTL', key)
  if ttl < 0 then
    return ttl
  end
  return now_ms + ttl + 1
end

-- Ends a key that would live for longer than so many ms from now, or for ever.
local function outlive(key, ms)
  local at, last = expiry(key), ceil(now / 1000) + ms
  if at == -1 or at > last then
    call('PEXPIREAT', key, format('%d', last))
  end
end

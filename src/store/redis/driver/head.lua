-- What every strategy's half may use. All numbers are integers below 2^53.

local pcall, error = pcall, error
local floor, ceil, min, max, abs = math.floor, math.ceil, math.min, math.max, math.abs
local sub, find, match = string.sub, string.find, string.match
-- Lua 5.1 has it by itself.
local unpack = table.unpack or unpack

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

-- When a key ends, in ms since the epoch; -1 never, -2 no key. In that ms it may be gone already, or be there still.
local function expiry(key)
  if redis.REDIS_VERSION_NUM then
    return call('PEXPIRETIME', key)
  end
  -- Before 7.0 only the time to live can be had, by a clock that moves on: it is known when that stood still meanwhile.
  local before, ttl, after
  after = now_ms
  repeat
    before, ttl = after, call('PTTL', key)
    if ttl < 0 then
      return ttl
    end
    local time = call('TIME')
    after = time[1] * 1000 + floor(time[2] / 1000)
  until before == after
  return after + ttl
end

-- Ends a key that would live for longer than so many ms from now, or for ever.
local function outlive(key, ms)
  local at, last = expiry(key), next_ms + ms
  if at == -1 or at > last then
    call('PEXPIREAT', key, format('%d', last))
  end
end

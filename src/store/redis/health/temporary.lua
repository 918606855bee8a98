-- Evaluates one operation of a health check, and has its key expire soon: the check may be cut off.

local function evaluate()
  -- SLOT: script
end

local reply = evaluate()
local time = redis.call('TIME')
local expired = redis.pcall('PEXPIREAT', KEYS[1], string.format('%d', time[1] * 1000 + 10000))
if type(expired) == 'table' then
  -- The user may not do that.
  redis.call('DEL', KEYS[1])
end
return reply

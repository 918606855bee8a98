-- Finds out whether the server can count now: writes as strategies do, to a key of its own, which it deletes.
local answer = redis.pcall('SET', KEYS[1], '1', 'PX', '1000')
if answer.err then
  -- Before 7.0 other text precedes the error.
  return redis.error_reply(string.match(answer.err, '%u%u+ .*') or answer.err)
end
redis.pcall('DEL', KEYS[1])
return answer

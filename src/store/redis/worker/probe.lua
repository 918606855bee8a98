-- Whether this server counts now: writes as strategies do, on a key that is nobody's, and leaves nothing behind.
local answer = redis.pcall('SET', KEYS[1], '1', 'PX', '1000')
if answer.err then
  -- before 7.0 another word stands before the error's own
  return redis.error_reply(string.match(answer.err, '%u%u+ .*') or answer.err)
end
redis.pcall('DEL', KEYS[1])
return answer

-- Which of a policy's commands the user may not run: a script that pcalls one never tells. Each is tried on a key that nobody
-- uses, with arguments that make little sense; what comes of it is removed.
--
-- KEYS: the key. ARGV: the commands. Answers those that are refused.

local key, lacking = KEYS[1], {}

local function is_refused(command, ...)
  local answer = redis.pcall(command, ...)
  local why = type(answer) == 'table' and answer.err or ''
  return string.find(why, "can't run this command", 1, true) or string.find(why, 'permissions to run', 1, true)
end

for _, command in ipairs(ARGV) do
  if command == 'PEXPIRETIME' and not redis.REDIS_VERSION_NUM then
    -- before 7.0
    command = 'PTTL'
  end
  -- what makes a key of another kind finds this one in its place, and what makes none has one that ends
  redis.pcall('SET', key, '0', 'PX', '1000')
  local refused = false
  if command == 'TIME' then
    refused = is_refused(command)
  elseif command == 'SET' then
    refused = is_refused(command, key, '0', 'PX', '1000')
  else
    -- as many as it wants: they are counted before rights are looked at
    local args = {}
    for more = 0, 4 do
      refused = refused or is_refused(command, key, unpack(args))
      args[more + 1] = '0'
    end
  end
  if refused then
    lacking[#lacking + 1] = string.lower(command)
  end
  for _, removal in ipairs({ { 'DEL', key }, { 'UNLINK', key }, { 'PEXPIREAT', key, '1' }, { 'PEXPIRE', key, '0' } }) do
    redis.pcall(unpack(removal))
  end
end

return lacking

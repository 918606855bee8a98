-- Returns the commands of a policy that the user may not run, which a script that pcalls them would not show. Each is tried on a
-- key of its own with arguments that make little sense; the key is deleted.
--
-- KEYS: the key. ARGV: the commands.

local key, lacking = KEYS[1], {}

local function is_denied(command, ...)
  local reply = redis.pcall(command, ...)
  local message = type(reply) == 'table' and reply.err or ''
  return string.find(message, "can't run this command", 1, true) or string.find(message, 'permissions to run', 1, true)
end

for _, command in ipairs(ARGV) do
  if command == 'PEXPIRETIME' and not redis.REDIS_VERSION_NUM then
    -- Before 7.0.
    command = 'PTTL'
  end
  -- A command for another type finds a key of the wrong one, and a command that makes no key finds one with a TTL.
  redis.pcall('SET', key, '0', 'PX', '1000')
  local denied = false
  if command == 'TIME' then
    denied = is_denied(command)
  elseif command == 'SET' then
    denied = is_denied(command, key, '0', 'PX', '1000')
  else
    -- As many arguments as it wants: the server counts them before it checks rights. The key again, since arguments may be keys,
    -- and after a command with keys of several slots, Valkey 9.1 fails all scripts that begin with TIME.
    local args = {}
    for more = 0, 4 do
      denied = denied or is_denied(command, key, unpack(args))
      args[more + 1] = key
    end
  end
  if denied then
    lacking[#lacking + 1] = string.lower(command)
  end
  for _, removal in ipairs({ { 'DEL', key }, { 'UNLINK', key }, { 'PEXPIREAT', key, '1' }, { 'PEXPIRE', key, '0' } }) do
    redis.pcall(unpack(removal))
  end
end

return lacking

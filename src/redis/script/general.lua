-- The general path: evaluates entries by the functions of the strategies.
-- luacheck: globals call tonumber type format now_ms next_ms KEYS args op policy_count seg seg_tail seg_first_key seg_last_key request_counts keys_done reply reply_len repairs
-- luacheck: ignore ceil abs sub match number cap_ttl evaluate_counters undo 542 (for the slots)

-- What strategies may use, beside main.lua's call, format, tonumber, type, now, now_s, now_us, now_ms and next_ms. All
-- numbers are integers below 2^53.
local pcall, error = pcall, error
local floor, ceil, min, max, abs = math.floor, math.ceil, math.min, math.max, math.abs
local sub, find, match = string.sub, string.find, string.match
-- Lua 5.1 has it as a global.
local unpack = table.unpack or unpack

-- The key holds something that this library did not write: fails, and leaves it alone.
local function foreign(_, why)
  error('FOREIGN ' .. why, 0)
end

local function number(key, text, digits)
  if #text > digits or not find(text, '^%d+$') then
    foreign(key, 'not a whole number of at most ' .. digits .. ' digits')
  end
  return tonumber(text)
end

-- When a key expires, in ms since the epoch; -1 never, -2 no key. In that ms it may be gone already, or be there still.
local function expiry(key)
  if redis.REDIS_VERSION_NUM then
    return call('PEXPIRETIME', key)
  end
  -- Before 7.0 there is only the TTL, by a clock that moves on: their sum is right if that clock stood still meanwhile.
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

-- Shortens a key's TTL to so many ms, if it is longer or missing.
local function cap_ttl(key, ms)
  local expires_at, last = expiry(key), next_ms + ms
  if expires_at == -1 or expires_at > last then
    call('PEXPIREAT', key, format('%d', last))
  end
end

-- The functions of the strategy of that number.
local function load_strategy(strategy)
  -- SLOT: strategies
end

local strategies, params = {}, {}

-- The functions and parameters of the policy at that place in args.
local function policy_at(policy)
  local strategy, p = strategies[args[policy]], params[policy]
  if not strategy then
    strategy = load_strategy(args[policy])
    strategies[args[policy]] = strategy
  end
  if not p then
    local first, count = policy + 4, args[policy + 3]
    p = count == 0 and args[first] or { unpack(args, first, first + count - 1) }
    params[policy] = p
  end
  return strategy, p
end

-- Leaves a key as it was found, and has it repaired last of all. Entries may share a key, so the last one counts: what an
-- earlier one found must not come back.
local function leave(key, strategy, p, a, b, c)
  repairs = repairs or {}
  repairs[key] = { strategy, p, a, b, c }
end

-- What most entries are: acquisitions under one policy that charges what is admitted, by a strategy that records no callers
-- and has no `snapshot`. Evaluates them as operations.lua would, without a counter.
local function acquire_single(last_key, strategy, p, units, snapshot_len)
  local available, charge, counts = strategy.available, strategy.charge, request_counts
  for place = keys_done + 1, last_key do
    local key, admitted = KEYS[place], counts and counts[place - seg_first_key] or 1
    local free, a, b, c = available(key, p)
    if units > 0 and free < admitted * units then
      admitted = max(0, floor(free / units))
    end
    if admitted > 0 and units > 0 then
      a, b, c = charge(key, p, a, b, c, admitted * units, nil, units)
      if repairs then
        repairs[key] = nil
      end
    else
      leave(key, strategy, p, a, b, c)
    end
    reply[reply_len + 1], reply[reply_len + 2] = admitted, a
    if snapshot_len > 1 then
      reply[reply_len + 3], reply[reply_len + 4] = b or 0, snapshot_len > 2 and (c or 0) or nil
    end
    reply_len, keys_done = reply_len + 1 + snapshot_len, place
  end
end

-- Evaluates all other entries, and undoes what one has charged: see operations.lua.
local evaluate_counters, undo

-- Evaluates so many of the segment's entries, or all that are left. One that fails is undone, and the others go on.
return function(entries)
  local last_key = min(keys_done + entries * policy_count, seg_last_key)
  local policy, units, mode = args[seg + 3], args[seg + 4], args[seg + 5]
  local strategy, p = policy_at(policy)
  local records_caller, snapshot_len = args[policy + 1] == 1, args[policy + 2]
  local is_single = op == 1 and policy_count == 1 and mode == 0 and not records_caller and not strategy.snapshot
  if not is_single and not evaluate_counters then
    -- SLOT: operations
  end
  while keys_done < last_key do
    local ok, why = pcall(is_single and acquire_single or evaluate_counters, last_key, strategy, p, units, snapshot_len)
    if not ok then
      if not is_single then
        undo()
      end
      reply[reply_len + 1], reply[reply_len + 2] = -1, type(why) == 'table' and why.err or why
      reply_len, keys_done = reply_len + 2, keys_done + policy_count
    end
  end
end

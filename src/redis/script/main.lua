-- The driver: evaluates a batch of requests, each under one or more policies, all or nothing. mod.rs describes what it is sent
-- and what it replies, and fills the slots.
-- luacheck: ignore try tonumber type format now_ms next_ms reply_len repairs evaluate request_counts fast 542 (for the slots)

local call, try, tonumber, type, format = redis.call, redis.pcall, tonumber, type, string.format

-- One instant for the whole batch, by the server's clock.
local time = call('TIME')
local now_s, now_us = time[1] + 0, time[2] + 0
local now = now_s * 1000000 + now_us
-- `now` in ms, rounded down and up. A state that counts until an instant expires at that instant rounded up, never before.
local now_ms, next_ms = (now - now % 1000) / 1000, (now + -now % 1000) / 1000

-- The keys of all entries, and how many have been evaluated.
local KEYS, keys_done = KEYS, 0
local args = { cmsgpack.unpack(ARGV[1]) }
-- Preallocated, since a growing table is copied: filled with the keys, which only take up the space.
local reply, reply_len = { args[3], now, nil, (unpack or table.unpack)(KEYS) }, 2
-- Keys that are left as they were found, and what repairs them: see general.lua.
local repairs
-- Evaluates entries by the functions of the strategies: see general.lua. Making functions takes half of the time of a call
-- for one key, so they are made when the first entry comes that no fast path takes.
local evaluate

-- The current segment: where it begins in args, and how many keys there are before it and up to its end; what it asks for, and
-- where its last two values are.
local seg, seg_first_key = args[2], 0
local seg_last_key, op, entry_count, policy_count, seg_tail
-- How many equal requests each of its entries stands for, if not one.
local request_counts

while args[seg] do
  op, entry_count, policy_count = args[seg], args[seg + 1], args[seg + 2]
  seg_tail = seg + 3 * policy_count + 3
  seg_last_key = seg_first_key + entry_count * policy_count
  request_counts = args[seg_tail] == 1 and args[seg_tail + 1]

  -- The strategy of all its policies, if a fast path may evaluate it: an acquisition that charges what is admitted, by policies
  -- that record no callers and whose parameters are not in a list (see mod.rs).
  local fast = op == 1 and args[args[seg + 3]]
  for i = seg + 3, seg_tail - 1, 3 do
    local policy = args[i]
    if args[policy] ~= fast or args[policy + 1] == 1 or args[policy + 3] == 0 or args[i + 2] ~= 0 then
      fast = nil
      break
    end
  end

  -- The runs of the fast path, counted by what mod.rs (Script::of) puts into its slot. Each run stops at an entry that it
  -- can't evaluate. The general path evaluates one entry after the first run, two after the next, then four.
  local fast_runs = 0
  repeat
    local fast_first_key = keys_done
    -- SLOT: fast paths
    if repairs then
      for i = fast_first_key + 1, keys_done do
        local repair = repairs[KEYS[i]]
        if repair then
          -- The fast path evaluated this key after it was left: it is read again before the repair.
          repair.is_outdated = true
        end
      end
    end
    if keys_done < seg_last_key then
      if not evaluate then
        -- SLOT: general path
      end
      evaluate(fast_runs > 0 and 2 ^ (fast_runs - 1) or entry_count)
    end
  until keys_done == seg_last_key
  seg, seg_first_key = seg_tail + 2, seg_last_key
end

-- Last: after a PEXPIREAT the server no longer checks this script's writes for memory, so a later one could run although
-- memory is full.
if repairs then
  for key, repair in pairs(repairs) do
    local strategy, p, a, b, c = repair[1], repair[2], repair[3], repair[4], repair[5]
    local found, _ = true, nil
    if repair.is_outdated then
      found, _, a, b, c = pcall(strategy.available, key, p)
    end
    if found then
      pcall(strategy.repair, key, p, a, b, c)
    end
  end
end

return cmsgpack.pack(reply)

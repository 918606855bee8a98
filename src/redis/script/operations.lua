-- All operations under any policies. A counter is one policy's part of the entry that is evaluated: its key's state as it
-- was read or written last (a, b, c), and how many units moved.
-- luacheck: globals call now KEYS args op policy_count seg seg_tail seg_first_key request_counts keys_done reply reply_len repairs pcall floor ceil min max policy_at leave

-- The segment whose counters these are; what its entries have of their own, and where that is read next.
local counted_seg, counters, has_receipts, has_callers, values, next_value
-- How many counters of the entry have been charged or left.
local done = 0

local function read_segment()
  counters, has_receipts, has_callers = {}, false, false
  values, next_value = args[seg_tail + 1], 1
  for i = 1, policy_count do
    local policy, units = args[seg + 3 * i], args[seg + 3 * i + 1]
    local strategy, p = policy_at(policy)
    local mode, records_caller = args[seg + 3 * i + 2], args[policy + 1] == 1 and units > 0
    local refunds = op == 2 and mode == 1
    has_receipts, has_callers = has_receipts or refunds, has_callers or records_caller
    -- Modes of an adjustment: 0 charges, 1 refunds. Of an acquisition: 0 charges what is admitted, 1 only checks, 2 charges what
    -- is rejected too, into debt, 3 the same without debt, 4 counts what other policies reject, 8 and 9 are a shadow's 0 and 1.
    counters[i] = {
      strategy = strategy, p = p, snapshot_len = args[policy + 2], units = units, mode = mode, refunds = refunds,
      records_caller = records_caller, available = strategy.available, free = 0, a = 0, b = 0, c = 0, moved = 0,
    }
  end
  counted_seg = seg
end

-- Reads the receipts and callers of n equal requests.
local function read_values(n)
  for i = 1, has_receipts and policy_count or 0 do
    local counter = counters[i]
    if counter.refunds then
      counter.charged_at, counter.window_id, counter.remaining =
        values[next_value], values[next_value + 1], values[next_value + 2]
      next_value = next_value + 3
    end
  end
  for i = 1, has_callers and policy_count or 0 do
    local counter = counters[i]
    if counter.records_caller then
      local callers = {}
      for j = 1, min(n, counter.p[1]) do
        callers[j], next_value = values[next_value], next_value + 1
      end
      counter.callers = callers
    end
  end
end

-- Reads the key of the i-th counter. Returns the counter and how many units it has.
local function read(i)
  local counter = counters[i]
  local free
  free, counter.a, counter.b, counter.c = counter.available(KEYS[keys_done + i], counter.p)
  counter.free = free
  return counter, free
end

local function charge(counter, key)
  local units = counter.units
  counter.a, counter.b, counter.c = counter.strategy.charge(
    key, counter.p, counter.a, counter.b, counter.c, counter.moved, counter.callers, units > 1 and units or 1)
  if repairs then
    repairs[key] = nil
  end
end

-- Charges each counter what an acquisition is to charge. A ban or a shadow that can't be charged fails none: what the others
-- decided stands.
local function charge_all()
  for i = 1, policy_count do
    local counter, key = counters[i], KEYS[keys_done + i]
    if counter.moved <= 0 then
      leave(key, counter.strategy, counter.p, counter.a, counter.b, counter.c)
    elseif counter.mode < 4 then
      charge(counter, key)
    elseif not pcall(charge, counter, key) then
      counter.moved = 0
      leave(key, counter.strategy, counter.p, counter.a, counter.b, counter.c)
    end
    done = i
  end
end

-- For how many of n equal requests a counter has enough units.
local function fit(counter, n)
  local free, units, mode = counter.free, counter.units, counter.mode
  if mode == 4 then
    return free > 0 and n or 0
  end
  if units == 0 or free >= n * units then
    return n
  end
  if mode % 8 == 1 then
    return free >= units and n or 0
  end
  return max(0, floor(free / units))
end

-- What is charged under a mode other than 0, if so many equal requests are admitted and so many count as rejected.
local function units_by_mode(counter, admitted, rejected)
  local mode, free, units = counter.mode, counter.free, counter.units
  if mode == 4 then
    return min(rejected * units, free)
  end
  if mode >= 8 then
    -- A shadow charges what fits of the requests that the others admit.
    admitted = fit(counter, admitted)
  end
  local charged = mode % 8 == 1 and 0 or admitted * units
  if (mode == 2 or mode == 3) and rejected > 0 and free - charged < units then
    -- What this policy rejects is charged, to at most one capacity of debt.
    local debt = mode == 2 and counter.p[1] or 0
    charged = charged + max(0, min(rejected * units, free - charged + debt))
  end
  return charged
end

-- Charges for as many of n equal requests as every policy has enough units for. Returns how many.
local function acquire(n)
  -- How many rejections count: those before a ban begins.
  local admitted, countable = n, n
  for i = 1, policy_count do
    local counter, free = read(i)
    local mode, units = counter.mode, counter.units
    if mode == 4 then
      if free < 1 or units > 0 then
        countable = min(countable, ceil(max(0, free) / max(1, units)))
      end
    elseif mode < 8 then
      admitted = fit(counter, admitted)
    end
  end
  if countable == 0 then
    admitted = 0
  end
  local rejected = min(n - admitted, countable)
  for i = 1, policy_count do
    local counter = counters[i]
    counter.moved = counter.mode == 0 and admitted * counter.units or units_by_mode(counter, admitted, rejected)
  end
  charge_all()
  return admitted
end

-- Charges a counter, down to a debt of one capacity.
local function charge_by_force(counter, key)
  counter.moved = max(0, min(counter.units, counter.free + counter.p[1]))
  if counter.moved > 0 then
    charge(counter, key)
  else
    leave(key, counter.strategy, counter.p, counter.a, counter.b, counter.c)
  end
end

-- Refunds by the receipt of a counter. Returns how many units.
local function refund(counter, key)
  local strategy, p, caller = counter.strategy, counter.p, counter.callers and counter.callers[1]
  local refunded, want = 0, min(counter.units, counter.remaining)
  if want > 0 then
    refunded, counter.a, counter.b, counter.c = strategy.refund(key, p, counter.a, counter.b, counter.c,
      counter.charged_at, counter.window_id, counter.remaining, want, caller)
  end
  leave(key, strategy, p, counter.a, counter.b, counter.c)
  return refunded
end

-- Reads the i-th counter again if another one of the entry has its key, and may have changed it.
local function read_changed(i)
  for j = 1, policy_count do
    if j ~= i and KEYS[keys_done + j] == KEYS[keys_done + i] then
      return read(i)
    end
  end
  return counters[i]
end

-- All keys are read before the first write: an entry that fails with STALE is sent again, and must have changed nothing. What is
-- charged can be undone: so nothing is refunded before all is charged.
local function adjust()
  if policy_count == 1 then
    local counter, key = read(1), KEYS[keys_done + 1]
    if counter.refunds then
      counter.moved = refund(counter, key)
    else
      charge_by_force(counter, key)
    end
    return
  end
  for i = 1, policy_count do
    read(i).moved = 0
  end
  for i = 1, policy_count do
    if not counters[i].refunds then
      charge_by_force(read_changed(i), KEYS[keys_done + i])
    end
    done = i
  end
  local refunded = {}
  for i = 1, has_receipts and policy_count or 0 do
    refunded[i] = counters[i].refunds and refund(read_changed(i), KEYS[keys_done + i])
  end
  -- Last, since `undo` takes what has moved for charged.
  for i = 1, policy_count do
    counters[i].moved = refunded[i] or counters[i].moved
  end
end

-- Only reads, and leaves nothing to be repaired. A reset deletes the keys after the reply is made.
local function peek()
  for i = 1, policy_count do
    read(i).moved = 0
  end
end

-- Extends permits by one TTL.
local function renew()
  for i = 1, policy_count do
    local counter, key = read(i), KEYS[keys_done + i]
    local extend = counter.strategy.renew
    counter.moved = 0
    if extend and counter.callers then
      counter.moved, counter.a, counter.b, counter.c =
        extend(key, counter.p, counter.a, counter.b, counter.c, counter.callers[1])
    end
    leave(key, counter.strategy, counter.p, counter.a, counter.b, counter.c)
  end
end

local function undo_units(i, units, caller)
  local counter = counters[i]
  local ok, _, a, b, c = pcall(counter.strategy.refund, KEYS[keys_done + i], counter.p,
    counter.a, counter.b, counter.c, now, nil, units, units, caller)
  if ok then
    counter.a, counter.b, counter.c = a, b, c
  end
end

-- Leaves nothing charged of an entry that failed half-way: the last charge first, since several may be of one key.
local function undo()
  for i = done, 1, -1 do
    local counter = counters[i]
    local left = counter.moved
    if left > 0 and not counter.callers then
      undo_units(i, left)
    elseif left > 0 then
      -- What several callers were charged is refunded to each of them, in one refund for each.
      local units_of, j = {}, 1
      while left > 0 do
        local caller, units = counter.callers[j], min(max(1, counter.units), left)
        units_of[caller] = (units_of[caller] or 0) + units
        left, j = left - units, j + 1
      end
      for caller, units in pairs(units_of) do
        undo_units(i, units, caller)
      end
    end
  end
end

local operations = { acquire, adjust, peek, peek, renew }

-- Evaluates entries until so many keys are done, and replies for each. Raises an error at the first that fails.
local function evaluate_counters(last_key)
  if counted_seg ~= seg then
    read_segment()
  end
  if not has_receipts and not has_callers then
    -- A fast path may have evaluated some, which have nothing but a count each.
    next_value = (keys_done - seg_first_key) / policy_count + 1
  end
  local operation = operations[op]
  while keys_done < last_key do
    local n = 1
    if request_counts then
      n, next_value = values[next_value], next_value + 1
    end
    if has_receipts or has_callers then
      read_values(n)
    end
    done = 0
    local len = reply_len + 1
    reply[len] = operation(n) or 1
    for i = 1, policy_count do
      local counter = counters[i]
      local a, b, c, snapshot = counter.a, counter.b, counter.c, counter.strategy.snapshot
      if snapshot then
        a, b, c = snapshot(KEYS[keys_done + i], counter.p, a, b, c, counter.units)
      end
      if op > 1 or counter.mode >= 8 then
        len = len + 1
        reply[len] = counter.moved
      end
      local snapshot_len = counter.snapshot_len
      reply[len + 1] = a
      if snapshot_len > 1 then
        reply[len + 2], reply[len + 3] = b or 0, snapshot_len > 2 and (c or 0) or nil
      end
      len = len + snapshot_len
    end
    for i = 1, op == 4 and policy_count or 0 do
      local key = KEYS[keys_done + i]
      call('DEL', key)
      if repairs then
        repairs[key] = nil
      end
    end
    reply_len, keys_done = len, keys_done + policy_count
  end
end

return evaluate_counters, undo

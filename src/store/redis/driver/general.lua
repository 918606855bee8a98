-- All other questions. Made when the first of them comes: most calls have none.
local function make_general()
  -- The segment at hand: its policies' functions and parameters, and the units under each.
  local count, units, available, charge, refund, renew, repair, snapshot, param = 0, {}, {}, {}, {}, {}, {}, {}, {}
  local mode, shadow, records_caller, words = {}, {}, {}, {}
  -- The question at hand: receipts, callers, state under each policy, units moved, and how many policies are written.
  local charged_at, window_id, remaining, callers = {}, {}, {}, {}
  local free, a, b, c, moved, done = {}, {}, {}, {}, {}, 0

  local function leave_one(key, i)
    leave(key, available[i], repair[i], param[i], a[i], b[i], c[i])
  end

  local function charge_one(i, key)
    a[i], b[i], c[i] = charge[i](key, param[i], a[i], b[i], c[i], moved[i], callers[i], max(1, units[i]))
    if repairs then
      repairs[key] = nil
    end
  end

  local function charge_all(base, acquires)
    for i = 1, count do
      local key = KEYS[base + i]
      if moved[i] > 0 and acquires and (mode[i] == 4 or shadow[i]) then
        -- what the others decided stands, also where no memory is left to note more than that
        if not pcall(charge_one, i, key) then
          moved[i] = 0
          leave_one(key, i)
        end
      elseif moved[i] > 0 then
        charge_one(i, key)
      else
        leave_one(key, i)
      end
      done = i
    end
  end

  -- For how many of n equal questions a policy has enough units.
  local function fit(i, n)
    local free, units = free[i], units[i]
    if mode[i] == 4 then
      return free > 0 and n or 0
    end
    if units == 0 or free >= n * units then
      return n
    end
    if mode[i] == 1 then
      return free >= units and n or 0
    end
    return max(0, floor(free / units))
  end

  -- For how many all have, without the shadows and the one at a place.
  local function fit_without(without, n)
    for i = 1, count do
      if i ~= without and not shadow[i] then
        n = fit(i, n)
      end
    end
    return n
  end

  -- Charges for as many of n equal questions as every policy has enough units for.
  local function acquire(base, n)
    -- how many refusals count: those before a ban begins
    local k, counted = n, n
    for i = 1, count do
      free[i], a[i], b[i], c[i] = available[i](KEYS[base + i], param[i])
      if mode[i] == 4 then
        if free[i] < 1 or units[i] > 0 then
          counted = min(counted, ceil(max(0, free[i]) / max(1, units[i])))
        end
      elseif not shadow[i] then
        k = fit(i, k)
      end
    end
    if counted == 0 then
      k = 0
    end
    local refused = min(n - k, counted)
    for i = 1, count do
      local mode, units, k, taken = mode[i], units[i], k, 0
      if shadow[i] then
        k = fit(i, shadow[i] > 0 and fit_without(shadow[i], n) or k)
      end
      if mode == 4 then
        taken = min(refused * units, free[i])
      elseif mode ~= 1 then
        taken = k * units
      end
      if (mode == 2 or mode == 3) and refused > 0 and free[i] - taken < units then
        -- what this policy refuses counts, to at most one capacity of debt
        local debt = mode == 2 and param[i][1] or 0
        taken = taken + max(0, min(refused * units, free[i] - taken + debt))
      end
      moved[i] = taken
    end
    charge_all(base, true)
    return k
  end

  -- Takes what is asked for, down to a debt of one capacity.
  local function force_acquire(base)
    for i = 1, count do
      free[i], a[i], b[i], c[i] = available[i](KEYS[base + i], param[i])
      moved[i] = max(0, min(units[i], free[i] + param[i][1]))
    end
    charge_all(base)
    return 1
  end

  local function refund_all(base)
    for i = 1, count do
      local key, p = KEYS[base + i], param[i]
      local _, a0, b0, c0 = available[i](key, p)
      moved[i], a[i], b[i], c[i] = refund[i](key, p, a0, b0, c0, charged_at[i], window_id[i], remaining[i], units[i], callers[i] and callers[i][1])
      leave_one(key, i)
    end
    return 1
  end

  local function reset_all(base)
    for i = 1, count do
      local _
      _, a[i], b[i], c[i] = available[i](KEYS[base + i], param[i])
      moved[i] = 0
    end
    return 1
  end

  local function renew_all(base)
    for i = 1, count do
      local key, p = KEYS[base + i], param[i]
      local _
      moved[i], _, a[i], b[i], c[i] = 0, available[i](key, p)
      if renew[i] and callers[i] then
        moved[i], a[i], b[i], c[i] = renew[i](key, p, a[i], b[i], c[i], remaining[i], callers[i][1])
      end
      leave_one(key, i)
    end
    return 1
  end

  -- Charges what has no receipt, down to a debt of one capacity, and refunds what has one. All keys are read before the
  -- first write, and what is charged can be undone: so nothing is refunded before all is charged.
  local function settle_all(base)
    for i = 1, count do
      free[i], a[i], b[i], c[i] = available[i](KEYS[base + i], param[i])
      moved[i] = remaining[i] > 0 and 0 or max(0, min(units[i], free[i] + param[i][1]))
    end
    charge_all(base)
    local refunded = {}
    for i = 1, count do
      if remaining[i] > 0 then
        local key, p = KEYS[base + i], param[i]
        local _, a0, b0, c0 = available[i](key, p)
        refunded[i], a[i], b[i], c[i] = refund[i](key, p, a0, b0, c0, charged_at[i], window_id[i], remaining[i], units[i], callers[i] and callers[i][1])
        leave_one(key, i)
      end
    end
    for i, units in pairs(refunded) do
      moved[i] = units
    end
    return 1
  end

  local ops = { acquire, force_acquire, refund_all, reset_all, renew_all, settle_all }

  local function undo_one(i, base, units, caller)
    local ok, _, a1, b1, c1 =
      pcall(refund[i], KEYS[base + i], param[i], a[i], b[i], c[i], now, nil, units, units, caller)
    if ok then
      a[i], b[i], c[i] = a1, b1, c1
    end
  end

  -- A decision that failed half-way leaves nothing charged.
  local function undo(base)
    for i = 1, done do
      if moved[i] > 0 and callers[i] then
        -- What several callers were charged is refunded to each of them, in one refund for each.
        local charged, charged_for, rest, j = {}, {}, moved[i], 1
        while rest > 0 do
          local caller, each = callers[i][j], min(max(1, units[i]), rest)
          if not charged_for[caller] then
            charged[#charged + 1], charged_for[caller] = caller, 0
          end
          charged_for[caller] = charged_for[caller] + each
          rest, j = rest - each, j + 1
        end
        for _, caller in ipairs(charged) do
          undo_one(i, base, charged_for[caller], caller)
        end
      elseif moved[i] > 0 then
        undo_one(i, base, moved[i])
      end
    end
  end

  -- What each question has of its own, and where that is read.
  local own, cursor

  local function read_receipts()
    for i = 1, count do
      charged_at[i], window_id[i], remaining[i] = own[cursor], own[cursor + 1], own[cursor + 2]
      cursor = cursor + 3
    end
  end

  local function read_callers(n)
    for i = 1, count do
      if records_caller[i] then
        local listed = {}
        for j = 1, min(n, param[i][1]) do
          listed[j] = own[cursor]
          cursor = cursor + 1
        end
        callers[i] = listed
      end
    end
  end

  -- Judges the rest of a segment's questions, and tells under each policy how each stands then.
  local function judge(kind, upto, listed, reads_callers)
    local op = ops[kind]
    while judged < upto do
      local n, base = 1, judged
      if listed then
        n, cursor = own[cursor], cursor + 1
      end
      if kind == 3 or kind > 4 then
        read_receipts()
      end
      if reads_callers then
        read_callers(n)
      end
      done = 0
      local place = last + 1
      answer[place] = op(base, n)
      for i = 1, count do
        local x, y, z = a[i], b[i], c[i]
        if snapshot[i] then
          x, y, z = snapshot[i](KEYS[base + i], param[i], x, y, z, units[i])
        end
        if kind ~= 1 or shadow[i] then
          place = place + 1
          answer[place] = moved[i]
        end
        local words = words[i]
        answer[place + 1] = x
        if words > 1 then
          answer[place + 2] = y or 0
          if words > 2 then
            answer[place + 3] = z or 0
          end
        end
        place = place + words
      end
      if kind == 4 then
        for i = 1, count do
          call('DEL', KEYS[base + i])
          if repairs then
            repairs[KEYS[base + i]] = nil
          end
        end
      end
      last, judged = place, base + count
    end
  end

  -- Judges so many of the segment's questions, after so many others: of those that have only a number of their own.
  return function(after, questions)
    local kind, reads_callers = plan[head], false
    count, own = plan[head + 2], plan[ends + 1]
    for i = 1, count do
      local place, half = head + 3 * i, nil
      half, param[i], words[i], records_caller[i] = policy_at(plan[place])
      units[i], mode[i], shadow[i] = plan[place + 1], plan[place + 2], nil
      if mode[i] > 7 then
        mode[i], shadow[i] = mode[i] % 8, floor(mode[i] / 8) - 1
      end
      available[i], charge[i], refund[i], renew[i], repair[i], snapshot[i] =
        half.available, half.charge, half.refund, half.renew, half.repair, half.snapshot
      records_caller[i], callers[i] = records_caller[i] and units[i] > 0, nil
      reads_callers = reads_callers or records_caller[i]
    end
    local listed, upto = plan[ends] == 1, judged + questions * count
    cursor = 1 + (listed and after or 0)
    while judged < upto do
      local ok, why = pcall(judge, kind, upto, listed, reads_callers)
      if not ok then
        -- it fails alone
        undo(judged)
        answer[last + 1], answer[last + 2] = -1, type(why) == 'table' and why.err or why
        last, judged = last + 2, judged + count
      end
    end
  end
end


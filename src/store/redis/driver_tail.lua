-- The driver: judges a batch of questions, each under one or more policies, all or nothing.
--
-- ARGV[1], in MessagePack: how many policies; each policy: its half, whether it signs (1), how many numbers of state are
--   answered, its parameters; then segments of like questions, each a list:
--     what is asked, how many questions, how many policies;
--     of each policy: which, the units under it, and the manner (0 charges; 1 only sees that there is room; 2 charges what is
--       refused too, into debt; 3 the same without debt; 4 charges what the others refuse, and that alone, if it has units;
--       8 more: a shadow, which refuses nothing, and 8 more for each place up to that of the policy that it would stand for);
--     whether (1) it is listed how many equal questions each stands for: one, if not;
--     then of each question: that number, and under each policy
--       the receipt (only to give back or renew: at, mark, left) and who asks (only if it signs: as many as there are equal ones).
-- KEYS: the keys of each question in turn, one per policy; then, if anything is given back or reset, the generation.
-- Answers one list in MessagePack: now, then for each question how many were admitted (-1: failed, and why), then under each
--   policy the units moved (of a take, by a shadow alone) and its numbers of state.

local KEYS, unpacked = KEYS, { cmsgpack.unpack(ARGV[1]) }
local answer, last = { now }, 1
-- How many keys have been judged.
local judged = 0

-- What was found under a key and left as it is, with what it takes to mend it. Questions share keys, so only the last word
-- on a key counts: a state that was written since is well, and an older one must not come back.
local mends
local function leave(key, ...)
  mends = mends or {}
  mends[key] = { ... }
end

local function policy_at(place)
  local policy = unpacked[1 + place]
  local half = policy[1]
  if type(half) == 'number' then
    half = strategies[half]()
    policy[1] = half
  end
  return half, policy[4], policy[3], policy[2] == 1
end

-- What most questions are: takes under one policy that charge what they admit, and are not signed.
local function plain(half, p, words, units, upto, segment, counts)
  local room, take, mend = half.room, half.take, half.mend
  for place = judged + 1, upto do
    local key, n, k = KEYS[place], 1, 1
    local free, a, b, c = room(key, p)
    if counts then
      n = segment[counts + place]
      k = n
    end
    if units > 0 and free < k * units then
      k = max(0, floor(free / units))
    end
    if k > 0 and units > 0 then
      a, b, c = take(key, p, a, b, c, k * units, nil, units)
      if mends then
        mends[key] = nil
      end
    else
      leave(key, mend, p, a, b, c)
    end
    answer[last + 1], answer[last + 2] = k, a
    if words > 1 then
      answer[last + 3], answer[last + 4] = b or 0, words > 2 and (c or 0) or nil
    end
    last = last + 1 + words
    judged = place
  end
end

-- All other questions. Made when the first of them comes: most calls have none.
local function make_general()
  -- The segment at hand: its policies' functions and parameters, and the units under each.
  local count, units, room, take, give, renew, mend, look, param = 0, {}, {}, {}, {}, {}, {}, {}, {}
  local manner, shadow, signed, words = {}, {}, {}, {}
  -- The question at hand: receipts, who asks, state under each policy, units moved, and how many policies are written.
  local at, mark, left, by = {}, {}, {}, {}
  local free, a, b, c, moved, done = {}, {}, {}, {}, {}, 0

  local function leave_one(key, i)
    leave(key, mend[i], param[i], a[i], b[i], c[i])
  end

  local function charge_one(i, key)
    a[i], b[i], c[i] = take[i](key, param[i], a[i], b[i], c[i], moved[i], by[i], max(1, units[i]))
    if mends then
      mends[key] = nil
    end
  end

  local function charge(base, takes)
    for i = 1, count do
      local key = KEYS[base + i]
      if moved[i] > 0 and takes and (manner[i] == 4 or shadow[i]) then
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

  -- For how many of n equal questions a policy has room.
  local function fit(i, n)
    local free, units = free[i], units[i]
    if manner[i] == 4 then
      return free > 0 and n or 0
    end
    if units == 0 or free >= n * units then
      return n
    end
    if manner[i] == 1 then
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

  -- Takes for as many of n equal questions as there is room for under every policy.
  local function ask_take(base, n)
    local k, refused, banned = n, 0, false
    for i = 1, count do
      free[i], a[i], b[i], c[i] = room[i](KEYS[base + i], param[i])
      if manner[i] == 4 then
        banned = banned or free[i] < 1
      elseif not shadow[i] then
        k = fit(i, k)
      end
    end
    if banned then
      k = 0
    else
      refused = n - k
    end
    for i = 1, count do
      local manner, units, k, taken = manner[i], units[i], k, 0
      if shadow[i] then
        k = fit(i, shadow[i] > 0 and fit_without(shadow[i], n) or k)
      end
      if manner == 4 then
        taken = min(refused * units, free[i])
      elseif manner ~= 1 then
        taken = k * units
      end
      if (manner == 2 or manner == 3) and refused > 0 and free[i] - taken < units then
        -- what this policy refuses counts, to at most one capacity of debt
        local debt = manner == 2 and param[i][1] or 0
        taken = taken + max(0, min(refused * units, free[i] - taken + debt))
      end
      moved[i] = taken
    end
    charge(base, true)
    return k
  end

  -- Takes what is asked for, down to a debt of one capacity.
  local function ask_force(base)
    for i = 1, count do
      free[i], a[i], b[i], c[i] = room[i](KEYS[base + i], param[i])
      moved[i] = max(0, min(units[i], free[i] + param[i][1]))
    end
    charge(base)
    return 1
  end

  local function ask_give(base)
    for i = 1, count do
      local key, p = KEYS[base + i], param[i]
      local _, a0, b0, c0 = room[i](key, p)
      moved[i], a[i], b[i], c[i] = give[i](key, p, a0, b0, c0, at[i], mark[i], left[i], units[i], by[i] and by[i][1])
      leave_one(key, i)
    end
    return 1
  end

  local function ask_reset(base)
    for i = 1, count do
      local _
      _, a[i], b[i], c[i] = room[i](KEYS[base + i], param[i])
      moved[i] = 0
    end
    return 1
  end

  local function ask_renew(base)
    for i = 1, count do
      local key, p = KEYS[base + i], param[i]
      local _
      moved[i], _, a[i], b[i], c[i] = 0, room[i](key, p)
      if renew[i] and by[i] then
        moved[i], a[i], b[i], c[i] = renew[i](key, p, a[i], b[i], c[i], left[i], by[i][1])
      end
      leave_one(key, i)
    end
    return 1
  end

  -- A charge is withdrawn as it is given back, by a function of its own where there is one.
  local asks = { ask_take, ask_force, ask_give, ask_reset, ask_renew, ask_give }

  local function undo_one(i, base, units, who)
    local ok, _, a1, b1, c1 =
      pcall(give[i], KEYS[base + i], param[i], a[i], b[i], c[i], now, nil, units, units, who)
    if ok then
      a[i], b[i], c[i] = a1, b1, c1
    end
  end

  -- A decision that failed half-way leaves nothing charged.
  local function undo(base)
    for i = 1, done do
      if moved[i] > 0 and by[i] then
        -- What several signed, each gives back himself: all of it, however often he signed.
        local signers, signed_for, rest, j = {}, {}, moved[i], 1
        while rest > 0 do
          local who, each = by[i][j], min(max(1, units[i]), rest)
          if not signed_for[who] then
            signers[#signers + 1], signed_for[who] = who, 0
          end
          signed_for[who] = signed_for[who] + each
          rest, j = rest - each, j + 1
        end
        for _, who in ipairs(signers) do
          undo_one(i, base, signed_for[who], who)
        end
      elseif moved[i] > 0 then
        undo_one(i, base, moved[i])
      end
    end
  end

  -- Where the segment is read.
  local cursor

  local function read_receipts(segment)
    for i = 1, count do
      at[i], mark[i], left[i] = segment[cursor], segment[cursor + 1], segment[cursor + 2]
      cursor = cursor + 3
    end
  end

  local function read_signatures(segment, n)
    for i = 1, count do
      if signed[i] then
        local who = {}
        for j = 1, n do
          who[j] = segment[cursor]
          cursor = cursor + 1
        end
        by[i] = who
      end
    end
  end

  -- Judges the rest of a segment's questions, and tells under each policy how each stands then.
  local function judge(segment, kind, upto, listed, signing)
    local ask = asks[kind]
    while judged < upto do
      local n, base = 1, judged
      if listed then
        n, cursor = segment[cursor], cursor + 1
      end
      if kind == 3 or kind > 4 then
        read_receipts(segment)
      end
      if signing then
        read_signatures(segment, n)
      end
      done = 0
      local place = last + 1
      answer[place] = ask(base, n)
      for i = 1, count do
        local x, y, z = a[i], b[i], c[i]
        if look[i] then
          x, y, z = look[i](KEYS[base + i], param[i], x, y, z, units[i])
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
          if mends then
            mends[KEYS[base + i]] = nil
          end
        end
      end
      last, judged = place, base + count
    end
  end

  return function(segment)
    local kind, questions, signing = segment[1], segment[2], false
    count, cursor = segment[3], 4
    for i = 1, count do
      local half
      half, param[i], words[i], signed[i] = policy_at(segment[cursor])
      units[i], manner[i], shadow[i] = segment[cursor + 1], segment[cursor + 2], nil
      if manner[i] > 7 then
        manner[i], shadow[i] = manner[i] % 8, floor(manner[i] / 8) - 1
      end
      cursor = cursor + 3
      room[i], take[i], give[i], renew[i], mend[i], look[i] =
        half.room, half.take, half.give, half.renew, half.mend, half.look
      if kind == 6 and half.withdraw then
        give[i] = half.withdraw
      end
      signed[i], by[i] = signed[i] and units[i] > 0, nil
      signing = signing or signed[i]
    end
    local listed, upto = segment[cursor] == 1, judged + questions * count
    cursor = cursor + 1
    while judged < upto do
      local ok, why = pcall(judge, segment, kind, upto, listed, signing)
      if not ok then
        -- it fails alone
        undo(judged)
        answer[last + 1], answer[last + 2] = -1, type(why) == 'table' and why.err or why
        last, judged = last + 2, judged + count
      end
    end
  end
end

local general
for i = unpacked[1] + 2, #unpacked do
  local segment = unpacked[i]
  local half, p, words, signs = policy_at(segment[4])
  if segment[1] == 1 and segment[3] == 1 and segment[6] == 0 and not signs and not half.look then
    local upto, counts = judged + segment[2], segment[7] == 1 and 7 - judged or nil
    while judged < upto do
      local ok, why = pcall(plain, half, p, words, segment[5], upto, segment, counts)
      if not ok then
        answer[last + 1], answer[last + 2] = -1, type(why) == 'table' and why.err or why
        last, judged = last + 2, judged + 1
      end
    end
  else
    general = general or make_general()
    general(segment)
  end
end

-- Whoever remembers that somebody was refused sees by this that it may be over.
if judged < #KEYS then
  pcall(call, 'SET', KEYS[judged + 1], format('%d', now), 'PX', '86400000')
end

-- Last of all: a PEXPIREAT ends the server's checks for memory, and what follows would be half refused.
if mends then
  for key, m in pairs(mends) do
    pcall(m[1], key, m[2], m[3], m[4], m[5])
  end
end

return cmsgpack.pack(answer)

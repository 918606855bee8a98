-- The driver: judges a batch of questions, each under one or more policies, all or nothing.
--
-- ARGV: how many policies, then each: its half, whether it signs (1), how many parameters, the parameters;
--       then segments of like questions until the end:
--       what is asked, how many policies, which, the units under each and the manner (0 charges; 1 only sees that there is
--       room; 2 charges what is refused too, into debt; 3 the same without debt), how many questions,
--       then for each question how many equal ones it stands for, and under each policy
--       the receipt (only to give back or renew: at, mark, left) and who asks (only if it signs: as many as there are equal ones).
-- KEYS: the keys of each question in turn, one per policy.
-- Answers one list: now, then for each question how many were admitted (-1: failed, and why),
-- then under each policy the units moved and three numbers of state.

local arg = 1
local function next_number()
  arg = arg + 1
  return tonumber(ARGV[arg - 1])
end

local halves, signs, params = {}, {}, {}
for i = 1, next_number() do
  halves[i], signs[i] = strategies[next_number()], next_number() == 1
  local p = {}
  for j = 1, next_number() do
    p[j] = next_number()
  end
  params[i] = p
end

local answer, last = { now }, 1
-- What was found under a key and left as it is, with what it takes to mend it. Questions share keys, so only the last word
-- on a key counts: a state that was written since is well, and an older one must not come back.
local mends = {}

-- The segment at hand: its policies' functions and parameters, and the units under each.
local count, units, room, take, give, renew, mend, look, param = 0, {}, {}, {}, {}, {}, {}, {}, {}
local manner, signed, signing = {}, {}, false
-- The question at hand: receipts, who asks, state under each policy, units moved, and how many policies are written.
local at, mark, left, by = {}, {}, {}, {}
local free, a, b, c, moved, done = {}, {}, {}, {}, {}, 0
-- What is answered of the state.
local x, y, z = {}, {}, {}

local function leave(key, i)
  mends[key] = { mend[i], param[i], a[i], b[i], c[i] }
end

local function charge(base)
  for i = 1, count do
    local key = KEYS[base + i]
    if moved[i] > 0 then
      a[i], b[i], c[i] = take[i](key, param[i], a[i], b[i], c[i], moved[i], by[i], max(1, units[i]))
      mends[key] = nil
    else
      leave(key, i)
    end
    done = i
  end
end

-- Takes for as many of n equal questions as there is room for under every policy.
local function ask_take(base, n)
  local k = n
  for i = 1, count do
    free[i], a[i], b[i], c[i] = room[i](KEYS[base + i], param[i])
    if units[i] > 0 then
      local fit = floor(free[i] / units[i])
      if manner[i] == 1 then
        fit = fit > 0 and n or 0
      end
      if fit < k then
        k = fit
      end
    end
  end
  if k < 0 then
    k = 0
  end
  for i = 1, count do
    local taken, denied = manner[i] ~= 1 and k * units[i] or 0, 0
    if manner[i] > 1 and k < n and free[i] - taken < units[i] then
      -- what this policy refuses counts, to at most one capacity of debt
      denied = max(0, min((n - k) * units[i], free[i] - taken + (manner[i] == 2 and param[i][1] or 0)))
    end
    moved[i] = taken + denied
  end
  charge(base)
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
    leave(key, i)
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
    leave(key, i)
  end
  return 1
end

-- A charge is withdrawn as it is given back, by a function of its own where there is one.
local asks = { ask_take, ask_force, ask_give, ask_reset, ask_renew, ask_give }

-- Judges one question, and tells under each policy how it stands then.
local function judge(ask, base, n)
  local result = ask(base, n)
  for i = 1, count do
    if look[i] then
      x[i], y[i], z[i] = look[i](KEYS[base + i], param[i], a[i], b[i], c[i], units[i])
    else
      x[i], y[i], z[i] = a[i], b[i] or 0, c[i] or 0
    end
  end
  if ask == ask_reset then
    for i = 1, count do
      call('DEL', KEYS[base + i])
      mends[KEYS[base + i]] = nil
    end
  end
  return result
end

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

local base = 0
while arg <= #ARGV do
  local kind = next_number()
  local ask = asks[kind]
  count, signing = next_number(), false
  for i = 1, count do
    local policy = next_number()
    local half = halves[policy]
    param[i], room[i], take[i], give[i], renew[i], mend[i], look[i] =
      params[policy], half.room, half.take, half.give, half.renew, half.mend, half.look
    if kind == 6 and half.withdraw then
      give[i] = half.withdraw
    end
    signed[i], by[i] = signs[policy], nil
  end
  for i = 1, count do
    units[i], manner[i] = next_number(), next_number()
    signed[i] = signed[i] and units[i] > 0
    signing = signing or signed[i]
  end
  for _ = 1, next_number() do
    local n = next_number()
    if kind == 3 or kind > 4 then
      for i = 1, count do
        at[i], mark[i], left[i] = next_number(), next_number(), next_number()
      end
    end
    if signing then
      for i = 1, count do
        if signed[i] then
          local who = {}
          for j = 1, n do
            who[j], arg = ARGV[arg], arg + 1
          end
          by[i] = who
        end
      end
    end
    done = 0
    local ok, result = pcall(judge, ask, base, n)
    if ok then
      answer[last + 1] = result
      last = last + 1
      for i = 1, count do
        answer[last + 1], answer[last + 2], answer[last + 3], answer[last + 4] = moved[i], x[i], y[i], z[i]
        last = last + 4
      end
    else
      undo(base)
      answer[last + 1] = -1
      answer[last + 2] = type(result) == 'table' and result.err or result
      last = last + 2
    end
    base = base + count
  end
end

-- Last of all: a PEXPIREAT ends the server's checks for memory, and what follows would be half refused.
for key, m in pairs(mends) do
  pcall(m[1], key, m[2], m[3], m[4], m[5])
end

return answer

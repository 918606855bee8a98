-- The fast path of GCRA: plain takes, judged in the main chunk without making a function. One INCRBY per policy charges a
-- key and returns what was there. All policies are charged before any is judged; then each charge is cut to the requests
-- that are admitted, and keys that are new, stale, cut or past the end of a lap are written. See gcra.lua for the state.
--
-- Leaves to gcra.lua, uncharged: requests that cost nothing or more than a burst, values that it did not write, and
-- commands that are refused.

local round, lap = 4500000000000000, 1200000000
local at, round_ms = now_s % 225000000 * 20000000 + now_us * 20, (now_s - now_s % 225000000) * 1000
-- What is added to a key, as a number and as text, and its tolerance; under several policies, a list of each.
local add, text, tolerance, adds, texts, tolerances
if count > 1 then
  adds, texts, tolerances = { 0, 0, 0 }, { 0, 0, 0 }, { 0, 0, 0 }
end
-- How the key under a policy is to be written, if not by the INCRBY alone: 1 it is cut, 2 it is new or stale.
local writes
-- How many requests were asked about last, and how many of them a full quota holds.
local asked, most
while judged < upto do
  local n = counts and counts[(judged - from) / count + 1] or 1
  if n ~= asked then
    asked, most = n, n
    for i = 1, count do
      local burst, cost = plan[plan[head + 3 * i] + 4], plan[head + 3 * i + 1]
      local fits = cost > 0 and (burst - burst % cost) / cost or 0
      if fits < most then
        most = fits
      end
    end
    if most == 0 then
      break
    end
    for i = 1, count do
      local p = plan[head + 3 * i] + 3
      add, tolerance = most * plan[head + 3 * i + 1] * plan[p + 2], plan[p + 3]
      text = format('%d', add)
      if adds then
        adds[i], texts[i], tolerances[i] = add, text, tolerance
      end
    end
  end

  -- Charges all policies, and finds for how many requests all of them have enough units. `answer` holds how far ahead each TAT is.
  local k, i, place, rewrites, failed = most, 0, last + 1, false, false
  repeat
    i, place = i + 1, place + 1
    if adds then
      add, text, tolerance = adds[i], texts[i], tolerances[i]
    end
    local value = tonumber(try('INCRBY', KEYS[judged + i], text))
    if not value then
      i, failed = i - 1, 0
      break
    end
    local ahead = value - at
    -- As a rule the key was there, has enough units, and stays in its lap.
    if ahead <= add or ahead > tolerance or (value - 1) % lap < add then
      rewrites = true
      if ahead > round / 2 then
        ahead = ahead - round
      elseif ahead <= -round / 2 then
        ahead = ahead + round
      end
      if value == add or ahead <= add then
        if value < add or value - add > round then
          failed = 0
          break
        end
        writes = writes or {}
        ahead, writes[i] = add, 2
      elseif value < add or value - add > round then
        failed = 0
        break
      elseif ahead - add > tolerance then
        local p = plan[head + 3 * i] + 3
        if ahead - add > (plan[p] > 3 and plan[p + 4] or 2 * tolerance) then
          writes = writes or {}
          ahead, writes[i] = tolerance + add, 1
        end
      end
      if ahead > tolerance then
        local available, step = tolerance - ahead + add, add / most
        local fits = available > 0 and (available - available % step) / step or 0
        if fits < k then
          k = fits
        end
      end
    end
    answer[place] = ahead
  until i == count
  if rewrites and not failed then
    for i = 1, count do
      local key, step, place = KEYS[judged + i], plan[head + 3 * i + 1] * plan[plan[head + 3 * i] + 5], last + 1 + i
      local net, how = k * step, writes and writes[i] or 0
      local before = answer[place] - most * step
      local tat = at + before + net
      if how == 2 and k == 0 then
        -- Nothing stays of what a rejected request made, also where the user may not DEL.
        if try('DEL', key) ~= 1 then
          try('PEXPIREAT', key, '1')
        end
      elseif how > 0 or k < most or (tat - 1) % lap < net then
        local ends = format('%d', round_ms + (tat + -tat % lap) / 20000)
        if how == 0 and k < most then
          try('INCRBY', key, format('%d', net - most * step))
        end
        if how == 0 and k == 0 then
          local ttl = try('PTTL', key)
          if type(ttl) == 'number' and (ttl < 0 or now_ms + ttl > ends + 1) then
            try('PEXPIREAT', key, ends)
          end
        elseif how == 0 and (tat - 1) % lap < net and (tat > round or try('PEXPIREAT', key, ends) ~= 1) then
          how = 3
        end
        if how > 0 and not try('SET', key, format('%d', (tat - 1) % round + 1), 'PXAT', ends).ok then
          -- What is left to be undone is the net, where the rest was undone already.
          failed = how == 3 and i + 1 or i
          break
        end
      end
      answer[place] = before + net
    end
  end
  if failed then
    for j = 1, i do
      local step = plan[head + 3 * j + 1] * plan[plan[head + 3 * j] + 5]
      local by = (j < failed and k or most) * step
      if writes and writes[j] == 2 then
        if try('DEL', KEYS[judged + j]) ~= 1 then
          try('PEXPIREAT', KEYS[judged + j], '1')
        end
      elseif by > 0 then
        try('INCRBY', KEYS[judged + j], format('%d', -by))
      end
    end
    break
  end
  if rewrites then
    writes = nil
  end
  answer[last + 1] = k
  last, judged = last + 1 + count, judged + count
end

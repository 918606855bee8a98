-- The fast path of GCRA: plain takes, judged in the main chunk without making a function. One INCRBY per policy charges a
-- key and returns what was there. All policies are charged before any is judged; then each charge is cut to the requests
-- that are admitted, and keys that are new, stale, cut or past the end of a lap are written. See gcra.lua for the state.
--
-- Leaves to gcra.lua, uncharged: requests that cost nothing or more than a burst, values that it did not write, and
-- commands that are refused.

local round, lap = 4500000000000000, 1200000000
local at, round_ms = now_s % 225000000 * 20000000 + now_us * 20, (now_s - now_s % 225000000) * 1000
-- Under each policy: what one request adds, what all of them add, as a number and as text, and the tolerance.
local steps, adds, texts, tolerances = { 0, 0, 0 }, { 0, 0, 0 }, { 0, 0, 0 }, { 0, 0, 0 }
-- What INCRBY returned, how far ahead the TAT was before (at most the tolerance, where it is cut), and how the key is to be
-- written: 0 by the INCRBY alone, 1 it is cut, 2 it is new or stale.
local values, befores, writes = { 0, 0, 0 }, { 0, 0, 0 }, { 0, 0, 0 }
-- How many requests were asked about last, and how many of them a full quota holds.
local asked, most
while judged < upto do
  local n = counts and counts[(judged - from) / count + 1] or 1
  if n ~= asked then
    asked, most = n, n
    for i = 1, count do
      local p, cost = plan[head + 3 * i] + 3, plan[head + 3 * i + 1]
      local fits = cost > 0 and (plan[p + 1] - plan[p + 1] % cost) / cost or 0
      steps[i], tolerances[i] = cost * plan[p + 2], plan[p + 3]
      if fits < most then
        most = fits
      end
    end
    if most == 0 then
      break
    end
    for i = 1, count do
      adds[i] = most * steps[i]
      texts[i] = format('%d', adds[i])
    end
  end

  -- Charges all, and finds how many requests all policies have room for.
  local k, done, rewrites, failed = most, 0, false, false
  repeat
    local i = done + 1
    local add, value = adds[i], tonumber(try('INCRBY', KEYS[judged + i], texts[i]))
    if not value then
      failed = 0
      break
    end
    done = i
    local ahead = value - at
    values[i], befores[i], writes[i] = value, ahead - add, 0
    answer[last + 1 + i] = ahead
    -- As a rule the key was there, has room, and stays in its lap.
    if ahead < add or ahead > tolerances[i] or (value - 1) % lap < add then
      local before, tolerance = -1, tolerances[i]
      if value ~= add then
        if value <= add or value - add > round then
          failed = 0
          break
        end
        if ahead > round / 2 then
          ahead = ahead - round
        elseif ahead <= -round / 2 then
          ahead = ahead + round
        end
        before = ahead - add
      end
      rewrites = true
      if before < 0 then
        before, writes[i] = 0, 2
      elseif before > tolerance then
        local p = plan[head + 3 * i] + 3
        if before > (plan[p] > 3 and plan[p + 4] or 2 * tolerance) then
          before, writes[i] = tolerance, 1
        end
      end
      befores[i] = before
      if before + add > tolerance then
        local room, step = tolerance - before, steps[i]
        local fits = room > 0 and (room - room % step) / step or 0
        if fits < k then
          k = fits
        end
      end
    end
  until i == count

  if rewrites and not failed then
    for i = 1, count do
      local key, add, net, before, how = KEYS[judged + i], adds[i], k * steps[i], befores[i], writes[i]
      local tat = at + before + net
      local ends = format('%d', round_ms + (tat + -tat % lap) / 20000)
      if how == 2 and k == 0 then
        -- Nothing stays of what a rejection made.
        call('DEL', key)
        how = 0
      elseif how == 0 then
        if net < add then
          call('INCRBY', key, format('%d', net - add))
        end
        if net == 0 then
          local ttl = try('PTTL', key)
          if type(ttl) == 'number' and (ttl < 0 or now_ms + ttl > ends + 1) then
            try('PEXPIREAT', key, ends)
          end
        elseif (values[i] - add + net - 1) % lap < net then
          how = (values[i] - add + net > round or try('PEXPIREAT', key, ends) ~= 1) and 3 or 0
        end
      end
      if how > 0 and not try('SET', key, format('%d', (tat - 1) % round + 1), 'PXAT', ends).ok then
        -- Of this one and those before it, what they add is what is left to be undone.
        failed = i
        for j = 1, i do
          if j < i or how == 3 then
            adds[j] = k * steps[j]
          end
        end
        break
      end
      answer[last + 1 + i] = before + net
    end
  end

  if failed then
    for i = 1, done do
      if writes[i] == 2 and values[i] == most * steps[i] then
        call('DEL', KEYS[judged + i])
      elseif adds[i] > 0 then
        call('INCRBY', KEYS[judged + i], format('%d', -adds[i]))
      end
    end
    asked = nil
    break
  end
  answer[last + 1] = k
  last, judged = last + 1 + count, judged + count
end

-- The short cut of GCRA, where its form is near: one INCRBY under each policy takes and tells what was there. If there isn't
-- room under all, all are undone. Stops, and leaves nothing charged, at what is not ours, is to be cut, or fits in part.
-- Times are doubled here, in 0.05 ns: a key of kind 2 holds its arrival time and one more.

local round, lap, farthest = 90e14, 120e10, 40e14
local at, round_ms = (now_s % 450000 * 1e10 + now_us * 10000) * 2 + 1, (now_s - now_s % 450000) * 1000
-- Under the policy at hand, and (if there are several) under each: what the INCRBY adds, as a number and written out, and
-- how far ahead it may lead.
local step, text, tolerance, steps, texts, tolerances
local times, ended
if count > 1 then
  -- Room for three, before they have to grow.
  steps, texts, tolerances = { 0, 0, 0 }, { 0, 0, 0 }, { 0, 0, 0 }
end
while judged < upto do
  local n = counts and counts[(judged - from) / count + 1] or 1
  if n ~= times then
    times = n
    for i = 1, count do
      local p = plan[head + 3 * i] + 3
      step, tolerance = 2 * n * plan[head + 3 * i + 1] * plan[p + 2], 2 * plan[p + 3]
      if step == 0 or step > lap or step > tolerance or plan[p + 8] == 0 then
        times = nil
        break
      end
      text = format('%d', step)
      if steps then
        steps[i], texts[i], tolerances[i] = step, text, tolerance
      end
    end
    if not times then
      break
    end
  end
  local i, place = 1, last + 1
  answer[place] = n
  repeat
    local key = KEYS[judged + i]
    if steps then
      step, text, tolerance = steps[i], texts[i], tolerances[i]
    end
    local value = tonumber(try('INCRBY', key, text))
    if not value then
      break
    end
    local ahead = value - at
    -- As a rule there was a key of kind 2 that lives as long as its lap.
    if ahead < step or ahead > tolerance or value % lap <= step or value % 2 ~= 1 then
      local new, ours = value == step, value > step and value <= round + 3 * lap + 1
      ahead = ahead + 1 - value % 2
      if ahead > farthest then
        ahead = ahead - round
      elseif ahead <= farthest - round then
        ahead = ahead + round
      end
      if ours and ahead >= step and ahead <= tolerance and value % lap > step and value % 2 == 1 then
        -- So it is where a round ends, too.
      elseif new or ours and ahead <= tolerance then
        ended = judged
        if new or ahead < step then
          ahead = step
        end
        local full, last_ms = at - 1 + ahead, next_ms + (ahead + -ahead % 2e7) / 2e7
        local stays = (full - lap) % round + lap
        if not new then
          stays, last_ms = stays + 1, round_ms + (full - full % lap + lap) / 2e7
        end
        last_ms = format('%d', last_ms)
        if value ~= stays or try('PEXPIREAT', key, last_ms) ~= 1 then
          if not try('SET', key, format('%d', stays), 'PXAT', last_ms).ok then
            -- It is told by the rest why not.
            if new then
              try('DEL', key)
            else
              call('INCRBY', key, '-' .. text)
            end
            break
          end
        end
      elseif ours and n < 2 and ahead - step <= 2 * tolerance then
        n = 0
      else
        call('INCRBY', key, '-' .. text)
        break
      end
    end
    i, place = i + 1, place + 1
    answer[place] = ahead / 2
  until i > count
  if n == 0 or i <= count then
    for j = 1, i - 1 do
      if steps then
        step, text = steps[j], texts[j]
      end
      call('INCRBY', KEYS[judged + j], '-' .. text)
      answer[last + 1 + j] = answer[last + 1 + j] - step / 2
    end
    if i <= count then
      break
    end
    answer[last + 1] = 0
  end
  last, judged = place, judged + count
end
-- Who doesn't look doesn't see that a key has lost its end: so the last ones are looked at.
if judged == #KEYS and (steps or ended ~= judged - 1) then
  for i = 1, count do
    local key = KEYS[judged - count + i]
    if try('PTTL', key) == -1 then
      local full = at - 1 + 2 * answer[last - count + i]
      try('PEXPIREAT', key, format('%d', round_ms + (full - full % lap + lap) / 2e7))
    end
  end
end

-- The short cut of GCRA, where its form is near: judges by an INCRBY, as `grab` and `settle` do in gcra.lua, and undoes it
-- if there is no room. Stops at what is not ours, is to be cut, or fits in part.

local interval, tolerance, round, lap, farthest = p[2], p[3], 45e14, 60e10, 2e15
local at, round_ms = now_s % 450000 * 1e10 + now_us * 10000, (now_s - now_s % 450000) * 1000
local added, text, kept
while judged < upto and p[8] == 1 do
  local key, n = KEYS[judged + 1], counts and segment[counts + judged] or 1
  local step = n * units * interval
  if step > lap or step > tolerance or step == 0 then
    break
  end
  if step ~= added then
    added, text = step, format('%d', 2 * step)
  end
  local value = try('INCRBY', key, text)
  if type(value) ~= 'number' then
    break
  end
  local tat, new = (value - value % 2) / 2, value == 2 * step
  local ahead, ours = tat - at, value > 2 * step and tat <= round + 3 * lap
  if ahead > farthest then
    ahead = ahead - round
  elseif ahead <= farthest - round then
    ahead = ahead + round
  end
  if value % 2 == 1 and ahead >= step and ahead <= tolerance and tat % lap >= step then
    -- As long as the key lives.
    kept = ahead
  elseif new or ours and ahead <= tolerance then
    if new or ahead < step then
      ahead = step
    end
    local ends, last_ms = at + ahead, next_ms + (ahead + -ahead % 1e7) / 1e7
    value, kept = ((ends - lap) % round + lap) * 2, nil
    if not new then
      value, last_ms = value + 1, round_ms + (ends - ends % lap + lap) / 1e7
    end
    if not try('SET', key, format('%d', value), 'PXAT', format('%d', last_ms)).ok then
      -- It is told below why not.
      if new then
        try('DEL', key)
      else
        call('INCRBY', key, '-' .. text)
      end
      break
    end
  else
    call('INCRBY', key, '-' .. text)
    ahead = ahead - step
    if not ours or n > 1 or ahead > 2 * tolerance then
      break
    end
    n, kept = 0, ahead
  end
  answer[last + 1], answer[last + 2] = n, ahead
  last, judged = last + 2, judged + 1
end
-- Who doesn't look doesn't see that a key has lost its end: so the last one is looked at.
if judged == #KEYS and kept and try('PTTL', KEYS[judged]) == -1 then
  local ends = at + kept
  try('PEXPIREAT', KEYS[judged], format('%d', round_ms + (ends - ends % lap + lap) / 1e7))
end

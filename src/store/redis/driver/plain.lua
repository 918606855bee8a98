-- What most questions are: acquisitions under one policy that charge what they admit, and whose callers are not recorded.
local function plain(half, p, words, units, upto, counts)
  local available, charge, repair = half.available, half.charge, half.repair
  for place = judged + 1, upto do
    local key, k = KEYS[place], counts and counts[place - from] or 1
    local free, a, b, c = available(key, p)
    if units > 0 and free < k * units then
      k = max(0, floor(free / units))
    end
    if k > 0 and units > 0 then
      a, b, c = charge(key, p, a, b, c, k * units, nil, units)
      if repairs then
        repairs[key] = nil
      end
    else
      leave(key, available, repair, p, a, b, c)
    end
    answer[last + 1], answer[last + 2] = k, a
    if words > 1 then
      answer[last + 3], answer[last + 4] = b or 0, words > 2 and (c or 0) or nil
    end
    last = last + 1 + words
    judged = place
  end
end

local function judge_plain(half, p, words, upto)
  local units, counts = plan[head + 4], plan[ends] == 1 and plan[ends + 1]
  while judged < upto do
    local ok, why = pcall(plain, half, p, words, units, upto, counts)
    if not ok then
      answer[last + 1], answer[last + 2] = -1, type(why) == 'table' and why.err or why
      last, judged = last + 2, judged + 1
    end
  end
end


-- What most questions are: takes under one policy that charge what they admit, and are not signed.
local function plain(half, p, words, units, upto, segment, counts)
  local room, take, mend = half.room, half.take, half.mend
  for place = judged + 1, upto do
    local key, k = KEYS[place], counts and segment[counts + place] or 1
    local free, a, b, c = room(key, p)
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

-- The segment's keys follow so many others.
local function judge_plain(segment, from, half, p, words)
  local upto, counts = from + segment[2], segment[7] == 1 and 7 - from or nil
  while judged < upto do
    local ok, why = pcall(plain, half, p, words, segment[5], upto, segment, counts)
    if not ok then
      answer[last + 1], answer[last + 2] = -1, type(why) == 'table' and why.err or why
      last, judged = last + 2, judged + 1
    end
  end
end


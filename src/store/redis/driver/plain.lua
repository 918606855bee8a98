-- What most questions are: takes under one policy that charge what they admit, and are not signed.

-- Whether halves may take without a look (grab). A question that fails so is asked once more, with one: that may do with
-- fewer rights and less memory, and tells what is wrong. Who doesn't look doesn't see that a key has lost its end either: so
-- the last key of each call is seen to.
local bold = true

local function plain(half, p, words, units, upto, segment, counts)
  local room, take, mend, grab = half.room, half.take, half.mend, bold and units > 0 and half.grab
  for place = judged + 1, upto do
    local key, k, a, b, c = KEYS[place], counts and segment[counts + place] or 1
    if grab and k > 0 then
      a, b, c = grab(key, p, k * units)
    end
    if a then
      if place == upto then
        leave(key, mend, p, a, b, c)
      elseif mends then
        mends[key] = nil
      end
    else
      local free
      free, a, b, c = room(key, p)
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
    end
    answer[last + 1], answer[last + 2] = k, a
    if words > 1 then
      answer[last + 3], answer[last + 4] = b or 0, words > 2 and (c or 0) or nil
    end
    last = last + 1 + words
    judged = place
  end
end

local function judge_plain(segment, half, p, words)
  local upto, counts = judged + segment[2], segment[7] == 1 and 7 - judged or nil
  while judged < upto do
    local ok, why = pcall(plain, half, p, words, segment[5], bold and upto or judged + 1, segment, counts)
    if not ok and bold and half.grab then
      bold = false
    else
      bold = true
      if not ok then
        answer[last + 1], answer[last + 2] = -1, type(why) == 'table' and why.err or why
        last, judged = last + 2, judged + 1
      end
    end
  end
end


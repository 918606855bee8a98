-- Takes under several policies, if all of them charge what they admit, and have halves that take without a look.

-- The segment at hand: the policies' halves and parameters, the units under each, the numbers of state that are answered.
local halves, params, costs, widths = {}, {}, {}, {}
-- The question at hand: for how many it stands, and from how many policies has been taken.
local times, taken = 1, 0

local function can_grab(segment)
  for i = 1, segment[3] do
    local cursor, half, signs = 1 + 3 * i
    half, params[i], widths[i], signs = policy_at(segment[cursor])
    halves[i], costs[i] = half, segment[cursor + 1]
    if not half.grab or half.look or signs or costs[i] < 1 or segment[cursor + 2] ~= 0 then
      return false
    end
  end
  return segment[1] == 1
end

-- Judges questions until there is one for which there isn't plainly room.
local function grab(count, upto, segment, counts)
  while judged < upto do
    if counts then
      times = segment[counts + judged / count]
    end
    local place = last + 1
    for i = 1, count do
      local key = KEYS[judged + i]
      local a, b, c
      if times > 0 then
        a, b, c = halves[i].grab(key, params[i], times * costs[i])
      end
      if not a then
        return
      end
      taken = i
      if judged + count == upto then
        leave(key, halves[i].mend, params[i], a, b, c)
      elseif mends then
        mends[key] = nil
      end
      local words = widths[i]
      answer[place + 1] = a
      if words > 1 then
        answer[place + 2], answer[place + 3] = b or 0, words > 2 and (c or 0) or nil
      end
      place = place + words
    end
    answer[last + 1] = times
    last, judged, taken = place, judged + count, 0
  end
end

-- Judges a segment; what can't be had so, is judged in general.
local function judge_grabs(segment, general)
  local count, first = segment[3], judged
  local upto, listed = judged + segment[2] * count, 4 + 3 * count
  local counts = segment[listed] == 1 and listed + 1 - first / count or nil
  times = 1
  while judged < upto do
    pcall(grab, count, upto, segment, counts)
    for i = 1, taken do
      pcall(halves[i].drop, KEYS[judged + i], params[i], times * costs[i])
    end
    taken = 0
    if judged < upto then
      general(segment, (judged - first) / count, 1)
    end
  end
end


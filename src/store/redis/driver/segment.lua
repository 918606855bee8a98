-- Segment by segment. Plain takes are judged here, in the main chunk, by the short cut of their strategy, if it has one: half
-- of the time of a call for one key goes to making functions. What a short cut stops at is judged by the rest (below), which
-- is made when the first comes to it: one question first, and twice as many each time.

-- Where the segment stands, where its policies end, and how many keys there are before it.
local head, ends, from, rest, look_again = plan[1], nil, 0, nil, nil
while plan[head] do
  local count = plan[head + 2]
  ends = head + 3 * count + 3
  local upto, half, stops = from + plan[head + 1] * count, plan[head] == 1 and plan[plan[head + 3]], 0
  for i = head + 3, ends - 1, 3 do
    local place = plan[i]
    if plan[place] ~= half or plan[place + 1] == 1 or plan[place + 3] == 0 or plan[i + 2] ~= 0 then
      half = nil
      break
    end
  end
  local counts = plan[ends] == 1 and plan[ends + 1]
  repeat
    local begun = judged

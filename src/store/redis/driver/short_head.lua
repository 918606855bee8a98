-- Plain takes (see plain.lua), from the first on: in the main chunk, since half of the time of a call for one key goes to
-- making functions. The rest is judged below.
do
  local from = 0
  for i = unpacked[1] + 2, #unpacked do
    local segment = unpacked[i]
    local policy, upto = unpacked[1 + segment[4]], from + segment[2] * segment[3]
    if segment[1] == 1 and segment[3] == 1 and segment[6] == 0 and policy[2] == 0 then
      local half, p, units, counts = policy[1], policy[4], segment[5], segment[7] == 1 and 8 - from or nil

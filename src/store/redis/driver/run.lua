-- Judges the segments, and answers.

local general, from = nil, 0
for i = unpacked[1] + 2, #unpacked do
  local segment = unpacked[i]
  local upto = from + segment[2] * segment[3]
  if judged < upto then
    local half, p, words, signs = policy_at(segment[4])
    if segment[1] == 1 and segment[3] == 1 and segment[6] == 0 and not signs and not half.look then
      judge_plain(segment, from, half, p, words)
    else
      general = general or make_general()
      if can_grab(segment) then
        judge_grabs(segment, general)
      else
        general(segment, 0, segment[2])
      end
    end
  end
  from = upto
end

-- Whoever remembers that somebody was refused sees by this that it may be over.
if judged < #KEYS then
  pcall(call, 'SET', KEYS[judged + 1], format('%d', now), 'PX', '86400000')
end

-- Last of all: a PEXPIREAT ends the server's checks for memory, and what follows would be half refused.
if mends then
  for key, m in pairs(mends) do
    pcall(m[1], key, m[2], m[3], m[4], m[5])
  end
end

return cmsgpack.pack(answer)

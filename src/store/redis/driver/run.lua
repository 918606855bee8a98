-- Judges so many of the segment's questions, from the first on that isn't judged.
local general
function rest(questions)
  local count = plan[head + 2]
  local after = (judged - from) / count
  questions = min(questions, plan[head + 1] - after)
  local half, p, words, records_caller = policy_at(plan[head + 3])
  if plan[head] == 1 and count == 1 and plan[head + 5] == 0 and not records_caller and not half.snapshot then
    judge_plain(half, p, words, judged + questions)
  else
    general = general or make_general()
    general(after, questions)
  end
end

end

rest(stops > 0 and 2 ^ (stops - 1) or plan[head + 1])
end
until judged == upto
head, from = ends + 2, upto
end

-- The epoch: processes that cache rejections read another one from now on. A DEL works on a server that is full, too.
if judged < #KEYS then
  try('DEL', KEYS[judged + 1])
end

-- Last of all: a PEXPIREAT ends the server's checks for memory, and what follows would be half refused.
if repairs then
  for key, m in pairs(repairs) do
    pcall(m[2], key, m[3], m[4], m[5], m[6])
  end
end

return cmsgpack.pack(answer)

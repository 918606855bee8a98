if repairs then
  for place = begun + 1, judged do
    look_again(KEYS[place])
  end
end
if judged < upto then
  if not rest then
    -- From here on functions are made.

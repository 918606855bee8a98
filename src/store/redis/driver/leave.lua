-- What was found under a key and left as it is, with what it takes to mend it. Questions share keys, so only the last word
-- on a key counts: a state that was written since is well, and an older one must not come back.
local mends
local function leave(key, ...)
  mends = mends or {}
  mends[key] = { ... }
end

local function policy_at(place)
  local policy = unpacked[1 + place]
  local half = policy[1]
  if type(half) == 'number' then
    half = strategies[half]()
    policy[1] = half
  end
  return half, policy[4], policy[3], policy[2] == 1
end


-- What was found under a key and left as it is, with what it takes to repair it. Questions share keys, so only the last word
-- on a key counts: a state that was written since is well, and an older one must not come back.
local function leave(key, available, repair, p, a, b, c)
  repairs = repairs or {}
  repairs[key] = { available, repair, p, a, b, c }
end

-- A short cut has judged it since: its state may be another one, and its end is as it was.
function look_again(key)
  local left = repairs[key]
  if left then
    local ok, _, a, b, c = pcall(left[1], key, left[3])
    repairs[key] = nil
    if ok then
      leave(key, left[1], left[2], left[3], a, b, c)
    end
  end
end

local policies = {}

-- The policy that stands in a place: its half and parameters, how many numbers of state are answered, and whether callers
-- are recorded.
local function policy_at(place)
  local policy = policies[place]
  if not policy then
    local half = strategies[plan[place]]
    if type(half) == 'function' then
      half = half()
      strategies[plan[place]] = half
    end
    local params, first = plan[place + 3], place + 4
    params = params == 0 and plan[first] or { unpack(plan, first, first + params - 1) }
    policy = { half, params, plan[place + 2], plan[place + 1] == 1 }
    policies[place] = policy
  end
  return policy[1], policy[2], policy[3], policy[4]
end

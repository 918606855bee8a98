-- The fast path of GCRA, run in the driver's main chunk: it makes no function. One INCRBY per policy charges a key and
-- returns the result. All policies of an entry are charged before the first result is compared with its tolerance; then each
-- charge is reduced to the requests that are admitted, and keys that are new, stale, capped or past the end of a minute are
-- written. See gcra.lua for the state.
--
-- Leaves to gcra.lua, uncharged: requests that cost nothing or more than a burst, keys with values of another program, and
-- commands that the server rejects.
-- luacheck: globals try tonumber type format now_s now_us now_ms KEYS args seg policy_count seg_first_key seg_last_key request_counts keys_done reply reply_len

local cycle, minute = 4500000000000000, 1200000000
local now_ticks, cycle_ms = now_s % 225000000 * 20000000 + now_us * 20, (now_s - now_s % 225000000) * 1000
-- What is added to a key, as a number and as text, and its tolerance; under several policies, a list of each.
local add, text, tolerance, adds, texts, tolerances
if policy_count > 1 then
  adds, texts, tolerances = { 0, 0, 0 }, { 0, 0, 0 }, { 0, 0, 0 }
end
-- How a policy's key has to be written, if the INCRBY alone is not enough: 'capped', or 'new', which includes stale.
local rewrites
-- How many requests the last entry stood for, and how many of them a full quota has units for.
local requests, fitting
while keys_done < seg_last_key do
  local n = request_counts and request_counts[(keys_done - seg_first_key) / policy_count + 1] or 1
  if n ~= requests then
    requests, fitting = n, n
    for i = 1, policy_count do
      local burst, cost = args[args[seg + 3 * i] + 4], args[seg + 3 * i + 1]
      local fits = cost > 0 and (burst - burst % cost) / cost or 0
      if fits < fitting then
        fitting = fits
      end
    end
    if fitting == 0 then
      break
    end
    for i = 1, policy_count do
      local p = args[seg + 3 * i] + 3
      add, tolerance = fitting * args[seg + 3 * i + 1] * args[p + 2], args[p + 3]
      text = format('%d', add)
      if adds then
        adds[i], texts[i], tolerances[i] = add, text, tolerance
      end
    end
  end

  -- Charges all policies, and finds for how many requests all of them have enough units. Keeps in `reply` how far ahead
  -- each TAT is.
  local admitted, i, index, is_plain, failed = fitting, 0, reply_len + 1, true, nil
  repeat
    i, index = i + 1, index + 1
    if adds then
      add, text, tolerance = adds[i], texts[i], tolerances[i]
    end
    local value = tonumber(try('INCRBY', KEYS[keys_done + i], text))
    if not value then
      i, failed = i - 1, 0
      break
    end
    local ahead = value - now_ticks
    -- Most often the key existed, has enough units, and stays in its minute.
    if ahead <= add or ahead > tolerance or (value - 1) % minute < add then
      is_plain = false
      if value < add or value - add > cycle then
        failed = 0
        break
      end
      if ahead > cycle / 2 then
        ahead = ahead - cycle
      elseif ahead <= -cycle / 2 then
        ahead = ahead + cycle
      end
      if value == add or ahead <= add then
        rewrites = rewrites or {}
        ahead, rewrites[i] = add, 'new'
      elseif ahead - add > tolerance then
        local p = args[seg + 3 * i] + 3
        if ahead - add > (args[p] > 3 and args[p + 4] or 2 * tolerance) then
          rewrites = rewrites or {}
          ahead, rewrites[i] = tolerance + add, 'capped'
        end
      end
      if ahead > tolerance then
        local free, step = tolerance - ahead + add, add / fitting
        local fits = free > 0 and (free - free % step) / step or 0
        if fits < admitted then
          admitted = fits
        end
      end
    end
    reply[index] = ahead
  until i == policy_count

  if not is_plain and not failed then
    for j = 1, policy_count do
      local key, step = KEYS[keys_done + j], args[seg + 3 * j + 1] * args[args[seg + 3 * j] + 5]
      local net, before = admitted * step, reply[reply_len + 1 + j] - fitting * step
      local tat, rewrite = now_ticks + before + net, rewrites and rewrites[j]
      local ends_minute = (tat - 1) % minute < net
      if rewrite == 'new' and admitted == 0 then
        -- A rejected request leaves no key behind, also where the user may not DEL.
        if try('DEL', key) ~= 1 then
          try('PEXPIREAT', key, '1')
        end
      elseif rewrite or admitted < fitting or ends_minute then
        local expires_at = format('%d', cycle_ms + (tat + -tat % minute) / 20000)
        if not rewrite and admitted < fitting then
          try('INCRBY', key, format('%d', net - fitting * step))
        end
        if not rewrite and admitted == 0 then
          local ttl = try('PTTL', key)
          if type(ttl) == 'number' and (ttl < 0 or now_ms + ttl > expires_at + 1) then
            try('PEXPIREAT', key, expires_at)
          end
        elseif not rewrite and ends_minute and (tat > cycle or try('PEXPIREAT', key, expires_at) ~= 1) then
          rewrite = 'minute'
        end
        if rewrite and not try('SET', key, format('%d', (tat - 1) % cycle + 1), 'PXAT', expires_at).ok then
          -- Keys before `failed` are charged the net by now, this one too if it ends a minute; the others are charged in full.
          failed = rewrite == 'minute' and j + 1 or j
          break
        end
      end
      reply[reply_len + 1 + j] = before + net
    end
  end
  if failed then
    for j = 1, i do
      local key, step = KEYS[keys_done + j], args[seg + 3 * j + 1] * args[args[seg + 3 * j] + 5]
      local charged = (j < failed and admitted or fitting) * step
      if rewrites and rewrites[j] == 'new' then
        if try('DEL', key) ~= 1 then
          try('PEXPIREAT', key, '1')
        end
      elseif charged > 0 then
        try('INCRBY', key, format('%d', -charged))
      end
    end
    break
  end
  if not is_plain then
    rewrites = nil
  end
  reply[reply_len + 1] = admitted
  reply_len, keys_done = reply_len + 1 + policy_count, keys_done + policy_count
end

-- Sliding log. State: a list of entries, the oldest first, and a header after them. An entry is an instant, in us since the
-- epoch, and the units charged then: `at` for one unit, else `at:units`. No two have the same instant. Entries older than the
-- period have expired: they no longer count, and the next charge removes them.
--
-- The header is the units of all entries, and then the blocks that the entries are in, the oldest first, each as
-- ` entries:units`. So the units of many entries are known without reading more than those of one block.
--
-- p: 1 requests, 2 period in us
-- state: count (the units that have not expired), expired (how many entries have), newest (the instant of the newest entry)
-- luacheck: read globals call format now now_ms floor ceil min max abs match pcall error number foreign expiry

-- How many entries a block has, at most.
local block_len = 500

-- The instant of an entry, and its units.
local function parse(key, entry)
  local at, units = match(entry or '', '^(%d+):?(%d*)$')
  if not at then
    foreign(key, 'not an entry of a log')
  end
  return number(key, at, 16), units == '' and 1 or number(key, units, 15)
end

local function instant(key, index)
  return (parse(key, call('LINDEX', key, index)))
end

local function entry_of(at, units)
  return units == 1 and format('%d', at) or format('%d:%d', at, units)
end

-- The units of all entries, the blocks, and the header that they stand in, if there is one.
local function read_header(key)
  local header = call('LINDEX', key, -1)
  if not header then
    return 0, '', false
  end
  local units, blocks = match(header, '^(%d+)( %d+:%d+[ %d:]*)$')
  if not units then
    foreign(key, 'not the header of a log')
  end
  return number(key, units, 15), blocks, header
end

-- How many entries are of no later instant than `at`.
local function count_until(key, at)
  local low, high = 0, call('LLEN', key) - 1
  while low < high do
    local middle = floor((low + high) / 2)
    if instant(key, middle) <= at then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

-- The units of the first so many entries.
local function units_of(key, blocks, entries)
  local units, first = 0, 0
  for len, sum in blocks:gmatch(' (%d+):(%d+)') do
    if first + len > entries then
      break
    end
    units, first = units + sum, first + len
  end
  if first < entries then
    for _, entry in ipairs(call('LRANGE', key, first, entries - 1)) do
      local _, own = parse(key, entry)
      units = units + own
    end
  end
  return units
end

-- The instant of the entry at which the entries, from the oldest on, add up to `units`; now, if all are fewer.
local function instant_of(key, blocks, units)
  local first = 0
  for len, sum in blocks:gmatch(' (%d+):(%d+)') do
    local last = first + len
    if units > sum + 0 then
      units, first = units - sum, last
    end
    -- As a rule, the first entry has enough.
    local step = 1
    while first < last do
      for _, entry in ipairs(call('LRANGE', key, first, min(first + step, last) - 1)) do
        local at, own = parse(key, entry)
        units = units - own
        if units <= 0 then
          return at
        end
      end
      first, step = first + step, 2 * step
    end
  end
  return now
end

-- The blocks of the first so many entries, which have so many units.
local function blocks_until(blocks, entries, units)
  local kept = ''
  for block, len, sum in blocks:gmatch('( (%d+):(%d+))') do
    if entries <= len + 0 then
      return entries > 0 and format('%s %d:%d', kept, entries, units) or kept
    end
    kept, entries, units = kept .. block, entries - len, units - sum
  end
  return kept
end

-- The blocks without the first so many entries, which have so many units.
local function blocks_after(blocks, entries, units)
  while entries > 0 do
    local len, sum, rest = match(blocks, '^ (%d+):(%d+)(.*)$')
    if entries < len + 0 then
      return format(' %d:%d%s', len - entries, sum - units, rest)
    end
    blocks, entries, units = rest, entries - len, units - sum
  end
  return blocks
end

-- The blocks with one more entry, or none, and more units at the end.
local function blocks_with(blocks, entries, units)
  local older, len, sum = match(blocks, '^(.*) (%d+):(%d+)$')
  if not older or entries > 0 and len + 0 >= block_len then
    older, len, sum = blocks, 0, 0
  end
  return format('%s %d:%d', older, len + entries, sum + units)
end

-- The blocks without units of the entry at `index`, and without the entry itself, if `entries` is 1. Blocks that are small by
-- now are joined.
local function blocks_without(blocks, index, entries, units)
  local joined, last_len, last_sum = '', 0, 0
  for len, sum in blocks:gmatch(' (%d+):(%d+)') do
    local rest = index - len
    if index >= 0 and rest < 0 then
      len, sum = len - entries, sum - units
    end
    index = rest
    if last_len + len <= block_len then
      last_len, last_sum = last_len + len, last_sum + sum
    else
      joined, last_len, last_sum = format('%s %d:%d', joined, last_len, last_sum), len + 0, sum + 0
    end
  end
  return format('%s %d:%d', joined, last_len, last_sum)
end

local function available(key, p)
  local units, blocks, header = read_header(key)
  if not header then
    return p[1], 0, 0, 0
  end
  local newest, expired = instant(key, -2), 0
  if instant(key, 0) <= now - p[2] then
    expired = count_until(key, now - p[2])
    units = units - units_of(key, blocks, expired)
  end
  return p[1] - units, units, expired, newest
end

-- The clock stepped back: charges of a later time count as charges of now.
local function end_at_now(key)
  local units, blocks = read_header(key)
  local earlier = count_until(key, now - 1)
  local kept = units_of(key, blocks, earlier)
  if kept < units then
    blocks = blocks_with(blocks_until(blocks, earlier, kept), 1, units - kept)
    -- First what a server whose memory is full refuses.
    call('LSET', key, earlier, entry_of(now, units - kept))
    call('LSET', key, earlier + 1, format('%d%s', units, blocks))
    call('LTRIM', key, 0, earlier + 1)
  end
end

local function charge(key, p, count, expired, newest, units)
  if newest > now then
    end_at_now(key)
    newest = now
  end
  local all, blocks, old_header = read_header(key)
  local entries, old_entry, entry = 1, nil, entry_of(now, units)
  if newest == now then
    old_entry = call('LINDEX', key, -2)
    local _, own = parse(key, old_entry)
    entries, entry = 0, entry_of(now, own + units)
  end
  blocks = blocks_with(blocks_after(blocks, expired, all - count), entries, units)
  local header = format('%d%s', count + units, blocks)
  if not old_header then
    call('RPUSH', key, entry, header)
  elseif entries == 1 then
    -- First what a server whose memory is full refuses. The entry then takes the element of the old header.
    call('RPUSH', key, header)
  else
    call('LSET', key, -1, header)
  end
  local ok, why = pcall(function()
    if old_header then
      call('LSET', key, -2, entry)
    end
    call('PEXPIREAT', key, format('%d', ceil((now + p[2]) / 1000)))
    if expired > 0 then
      call('LTRIM', key, expired, -1)
    end
  end)
  if not ok then
    -- Leaves nothing charged, and no log that never expires.
    if not old_header then
      pcall(call, 'DEL', key)
    elseif entries == 1 then
      pcall(call, 'LTRIM', key, 0, -2)
      pcall(call, 'LSET', key, -1, old_header)
    else
      pcall(call, 'LSET', key, -1, old_header)
      pcall(call, 'LSET', key, -2, old_entry)
    end
    error(why, 0)
  end
  return count + units, 0, now
end

local function refund(key, p, count, expired, newest, charged_at, _, remaining, want)
  local refunded = 0
  if count > 0 and charged_at > now - p[2] then
    local index = count_until(key, charged_at) - 1
    local entry = index >= 0 and call('LINDEX', key, index)
    local at, own = 0, 0
    if entry then
      at, own = parse(key, entry)
    end
    refunded = at == charged_at and min(want, remaining, own) or 0
    if refunded > 0 then
      local all, blocks = read_header(key)
      if refunded == all then
        call('DEL', key)
      else
        if refunded == own then
          call('LREM', key, -1, entry)
        else
          call('LSET', key, index, entry_of(at, own - refunded))
        end
        blocks = blocks_without(blocks, index, refunded == own and 1 or 0, refunded)
        call('LSET', key, -1, format('%d%s', all - refunded, blocks))
      end
    end
  end
  return refunded, count - refunded, expired, newest
end

local function repair(key, p, _, _, newest)
  if newest > now then
    end_at_now(key)
  end
  -- The log expires with its newest entry, also where the period was another one when that was written.
  local entry = call('LINDEX', key, -2)
  if entry then
    local expected = max(ceil((parse(key, entry) + p[2]) / 1000), now_ms + 1)
    -- A key that was moved expires a ms or two later.
    if abs(expiry(key) - expected) > 2 then
      call('PEXPIREAT', key, format('%d', expected))
    end
  end
end

-- The count, when enough entries will have expired for `cost`, and when all will have.
local function snapshot(key, p, count, _, _, cost)
  local fits_at, free_at = 0, 0
  if count > 0 then
    -- A settlement may have refunded entries since they were counted: they count with the latest instants that they may have had.
    local newest = call('LINDEX', key, -2)
    free_at = (newest and min(now, (parse(key, newest))) or now) + p[2]
    local over = count + cost - p[1]
    if over > 0 and cost <= p[1] then
      local units, blocks = read_header(key)
      fits_at = min(now, instant_of(key, blocks, units - count + over)) + p[2]
    end
  end
  return count, fits_at, free_at
end

return { available = available, charge = charge, refund = refund, repair = repair, snapshot = snapshot }

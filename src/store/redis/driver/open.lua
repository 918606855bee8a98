-- The driver: judges a batch of questions, each under one or more policies, all or nothing.
--
-- ARGV[1], in MessagePack, one value after the other, since lists cost more to read: where the segments begin; each policy:
--   its half, whether it records callers (1), how many numbers of state are answered, how many parameters it has, its parameters (or 0,
--   and a list of them, if they are many); then segments of like questions:
--     what is asked, how many questions, how many policies;
--     of each policy: where it stands, the units under it, and the mode (0 charges; 1 only checks that there are enough; 2 charges
--       what is rejected too, into debt; 3 the same without debt; 4 charges what the others reject, and that alone, if it has
--       units; 8 more: a shadow, which rejects nothing, and 8 more for each place up to that of the policy that it would stand
--       for);
--     whether (1) it is listed how many equal questions each stands for: one, if not;
--     a list of what each question has of its own, or 0 if there is nothing: that number, and under each policy
--       the receipt (only to refund or renew: charged_at, window_id, remaining) and the callers (only if it records them: as many
--       as there are equal ones, at most as a full quota has units).
-- KEYS: the keys of each question in turn, one per policy; then, if anything is given
--   back, reset or charged past the quota, the key of the epoch.
-- Answers one list in MessagePack: now, then for each question how many were admitted (-1: failed, and why), then under each
--   policy the units moved (of a take, by a shadow alone) and its numbers of state.

local call, try, tonumber, type, format = redis.call, redis.pcall, tonumber, type, string.format

-- One instant for the whole batch, by the server's clock.
local now_s, now_us
do
  local time = call('TIME')
  now_s, now_us = time[1] + 0, time[2] + 0
end
local now = now_s * 1000000 + now_us
-- The ms at hand, and the first that is not over before now: a key that is to live until then may go with its beginning.
local now_ms, next_ms = (now - now % 1000) / 1000, (now + -now % 1000) / 1000

local KEYS, plan = KEYS, { cmsgpack.unpack(ARGV[1]) }
-- As long as it will be at least: a list that grows is copied.
local answer, last = { now, nil, (unpack or table.unpack)(KEYS) }, 1
-- How many keys have been judged.
local judged = 0
-- What is done last of all (see leave.lua).
local repairs


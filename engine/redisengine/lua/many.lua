-- Several steps of one session, each on a resource of its own, one after the
-- other: what the script of each would do alone.
-- KEYS: as in enter.lua for the first step, then three for each other one: head, claims,
-- waiting. ARGV: five for each step: e (enter), l (leave) or p
-- (poll), and the four of its script. Returns what each script returns; an error of one is
-- its own.
local function enter(KEYS, ARGV)
--ENTER--
end
local function leave(KEYS, ARGV)
--LEAVE--
end
local function poll(KEYS, ARGV)
--POLL--
end
local scripts = {e = enter, l = leave, p = poll}
local out = {}
for i = 1, #ARGV / 5 do
  local k, a = i > 1 and 3 * i + 1 or 0, 5 * i
  local ok, reply = pcall(scripts[ARGV[a - 4]],
    {KEYS[k + 1], KEYS[k + 2], KEYS[k + 3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]}, {ARGV[a - 3], ARGV[a - 2], ARGV[a - 1], ARGV[a]})
  out[i] = (ok or type(reply) == 'table') and reply or redis.error_reply(reply)
end
return out

-- Proves that a session lives, and looks at the claims that the session holds.
--
-- KEYS:
--   1. the sessions
--   2. the session's own key
--   3. the boot mark that the client knows
--   4. for each claim two: head, claims
-- ARGV:
--   1. the session
--   2. its TTL in ms
--   3. whether to renew (1), or only to look (0)
--   4. keep in ms, if the script has to keep the keys from expiring; else 0
--   5. the id of each claim
--
-- Returns one of these:
--   - {-4}: the mark is another, and nothing was done
--   - {-1}: the session has ended
--   - {1, n, ...}: the numbers, from 1, of those claims that are not granted
if redis.call('EXISTS', KEYS[3]) == 0 then return {-4} end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local keep = tonumber(ARGV[4])
if ARGV[3] == '1' then
  -- PEXPIRE first: a full server refuses nothing after a command that needs no memory.
  if tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or 0) <= now or redis.call('PEXPIRE', KEYS[2], ARGV[2]) == 0 then
    redis.call('ZREM', KEYS[1], ARGV[1])
    return {-1}
  end
  redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
  if keep > 0 then
    redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
    if redis.call('PTTL', KEYS[1]) < keep / 2 then redis.call('PEXPIRE', KEYS[1], ARGV[4]) end
  end
end
local function holds(head, claims, id) -- a key of another type is not ours
  head = redis.pcall('GET', head)
  if type(head) ~= 'string' then return false end
  if string.sub(head, 1, 1) ~= 'F' then return string.find(head, id .. '\31', 2, true) == 2 end
  local record = redis.pcall('HGET', claims, 'c' .. id)
  return type(record) == 'string' and string.match(record, '^[^\31]*\31[^\31]*\31[^\31]*\31([^\31]*)') ~= '0'
end
local out = {1}
for i = 5, #ARGV do
  local head, claims = KEYS[2 * i - 6], KEYS[2 * i - 5]
  if not holds(head, claims, ARGV[i]) then
    out[#out + 1] = i - 4
  elseif keep > 0 and redis.call('PTTL', head) < keep / 2 then
    for _, key in ipairs({head, claims, string.sub(claims, 1, -2) .. 'q'}) do redis.call('PEXPIRE', key, keep) end
  end
end
return out

-- KEYS: 1 sessions, 2 boot mark, 3 grace, 4 the session's own key. ARGV: 1
-- session, 2 TTL in ms, 3 open, renew or check, 4 the grace in ms. Returns 1, or 0 when the session
-- to renew has ended.
--
-- The boot mark is the id that the server gave itself when it started. When it
-- is missing or another, the store may have forgotten grants: nothing is given
-- out for the time of the grace.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local ttl = tonumber(ARGV[2])
local ok, info = pcall(redis.call, 'INFO', 'server')
local run = ok and type(info) == 'string' and string.match(info, 'run_id:(%w+)')
local was = redis.call('GET', KEYS[2])
if not was or (run and was ~= run) then -- a user without INFO sees only a missing mark
  redis.call('SET', KEYS[2], run or 'unknown')
  if redis.call('PTTL', KEYS[3]) < tonumber(ARGV[4]) then redis.call('SET', KEYS[3], run or 'unknown', 'PX', ARGV[4]) end
end
if ARGV[3] == 'check' then return 1 end
if ARGV[3] == 'renew' and tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or 0) <= now then
  redis.call('ZREM', KEYS[1], ARGV[1])
  return 0
end
redis.call('ZADD', KEYS[1], now + ttl, ARGV[1])
redis.call('SET', KEYS[4], '1', 'PX', ttl)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if redis.call('PTTL', KEYS[1]) < 2 * ttl then redis.call('PEXPIRE', KEYS[1], 4 * ttl) end
return 1

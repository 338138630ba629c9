-- Keeps a session alive in the slot of one name of a cluster. KEYS: 1 sessions of
-- this name, 2 the session's own key here. ARGV: 1 session, 2 TTL in ms, 3 whether
-- it is new here (1 or 0). Returns 1, or 0 when it has ended here.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local ttl = tonumber(ARGV[2])
if ARGV[3] == '0' and tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or 0) <= now then return 0 end
redis.call('ZADD', KEYS[1], now + ttl, ARGV[1])
redis.call('SET', KEYS[2], '1', 'PX', ttl)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if redis.call('PTTL', KEYS[1]) < ttl then redis.call('PEXPIRE', KEYS[1], ttl) end
return 1

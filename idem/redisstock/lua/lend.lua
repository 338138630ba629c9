-- Units leave for another part, of which the loan keeps a record until they have arrived.
--
-- KEYS: those of part.lua, and
--   4. the loans
-- ARGV: that of part.lua, and
--   2. a loan that nobody had
--   3. the part to which units go
--   4. how many at most; with 0 the script only looks
--
-- Returns a list:
--   - how many units left
--   - the free units
--   - the reserved units
--   - how often units came in
--   - whether the part was ever put to
--   - the other loans
--   - whether more reservations may have expired
local k = math.min(free, tonumber(ARGV[4]))
local others = redis.call('HGETALL', KEYS[4])
if k > 0 then
  redis.call('HINCRBY', KEYS[1], 'n', text(-k))
  redis.call('HSET', KEYS[4], ARGV[2], ARGV[3] .. ' ' .. text(k))
end
local is = redis.call('HMGET', KEYS[1], 'r', 'in')
return {k, free - k, tonumber(is[1] or '0'), tonumber(is[2] or '0'), parts and 1 or 0, others, more and 1 or 0}

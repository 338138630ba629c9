-- ARGV:
--   1. how many numbers
--
-- Returns one of these:
--   - {1, limit, left, life}: the numbers are the caller's
--   - {0}: the numbers have to begin anew
--   - {-1}: too few are left
if not alive or not life then return {0} end
if tonumber(left) < tonumber(ARGV[1]) then return {-1} end
return {1, limit, redis.call('HINCRBY', KEYS[1], 'left', '-' .. ARGV[1]), life}

-- ARGV: 1 how many numbers. Returns {1, limit, left, life} when they are the caller's, else
-- {0} when the numbers have to begin anew, or {-1} when too few are left.
if not alive or not life then return {0} end
if tonumber(left) < tonumber(ARGV[1]) then return {-1} end
return {1, limit, redis.call('HINCRBY', KEYS[1], 'left', '-' .. ARGV[1]), life}

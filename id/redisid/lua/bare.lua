-- A counter without a mark, by INCRBY. The script says more about a key that holds something else.
--
-- KEYS:
--   1. the counter, a number
-- ARGV:
--   1. how many numbers
--
-- Returns the last.
local is = redis.call('GET', KEYS[1])
if is and not string.find(is, '^%d+$') then return redis.error_reply('WRONGTYPE the key holds "' .. string.sub(is, 1, 40) .. '"') end
redis.call('INCRBY', KEYS[1], ARGV[1])
return redis.call('GET', KEYS[1])

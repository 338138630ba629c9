-- A loan ends, once. KEYS: 4 the loans. ARGV: 2 the loan, 3 whether the units come back.
local is = redis.call('HGET', KEYS[4], ARGV[2])
if not is then return 0 end
redis.call('HDEL', KEYS[4], ARGV[2])
if ARGV[3] == '1' then comes(string.match(is, ' (%d+)$')) end
return 1

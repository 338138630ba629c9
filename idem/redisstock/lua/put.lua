-- KEYS: 4 of how many units the id is. ARGV: 2 of how many, 3 how many come to this part, 4 for
-- how many ms the id is kept.
local is = redis.call('GET', KEYS[4])
if is and is ~= ARGV[2] then return {'mismatch', tonumber(is)} end
if not is then
  redis.call('SET', KEYS[4], ARGV[2], 'PX', ARGV[4])
  comes(ARGV[3])
end
return {'ok', 0}

-- KEYS: 4 what became of the id. ARGV: 2 the id, 3 how many units, 4 and 5 for how many ms they
-- are held and the id is kept. Returns a word, and the free units.
local is = redis.call('GET', KEYS[4])
if is then
  local what, n = string.match(is, '^(%a) (%d+)$')
  if what == 'X' then return {'cancelled', 0} end
  if n ~= ARGV[3] then return {'mismatch', tonumber(n)} end
  if what == 'R' and redis.call('HEXISTS', KEYS[3], ARGV[2]) == 0 then return {'expired', 0} end
  return {'ok', 0}
end
if free < tonumber(ARGV[3]) and more then return {'again', 0} end
if free < tonumber(ARGV[3]) then return {'few', free} end
redis.call('HINCRBY', KEYS[1], 'n', '-' .. ARGV[3])
redis.call('HINCRBY', KEYS[1], 'r', ARGV[3])
redis.call('HSET', KEYS[3], ARGV[2], ARGV[3])
redis.call('ZADD', KEYS[2], text(now + ARGV[4]), ARGV[2])
redis.call('SET', KEYS[4], 'R ' .. ARGV[3], 'PX', text(ARGV[4] + ARGV[5]))
return {'ok', 0}

-- Confirms or cancels. KEYS: 4 what became of the id. ARGV: 2 the id, 3 C or X, 4 for how many ms
-- the id is kept. Returns a word.
local is = redis.call('GET', KEYS[4])
local what, n = string.match(is or 'U 0', '^(%a) (%d+)$')
local held = what == 'R' and redis.call('HEXISTS', KEYS[3], ARGV[2]) == 1
if what == ARGV[3] then return 'ok' end
if ARGV[3] == 'C' then
  if what == 'U' then return 'unknown' end
  if what == 'X' then return 'cancelled' end
  if not held then return 'expired' end
  ends(ARGV[2])
else
  if what == 'C' then return 'confirmed' end
  if held then comes(ends(ARGV[2])) end
end
redis.call('SET', KEYS[4], ARGV[3] .. ' ' .. n, 'PX', ARGV[4])
return 'ok'

-- Units arrive once, and only while the loan is open. KEYS: 4 the mark of the loan. ARGV: 2 how
-- many. Returns whether they have arrived.
local is = redis.call('GET', KEYS[4])
if is == 'open' then
  redis.call('SET', KEYS[4], 'done')
  comes(ARGV[2])
end
return is and 1 or 0

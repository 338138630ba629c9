-- ARGV: 1 the claim, 2 and 3 the mark before and after, 4 how many numbers lie between, 5 a
-- life that nobody had. Returns 1, or 0 when the claim is another's by now.
if not alive or claim ~= ARGV[1] then return 0 end
if life and limit == ARGV[2] then
  redis.call('HINCRBY', KEYS[1], 'left', ARGV[4])
  redis.call('HSET', KEYS[1], 'limit', ARGV[3])
else
  redis.call('HSET', KEYS[1], 'life', ARGV[5], 'limit', ARGV[3], 'left', ARGV[4])
end
redis.call('HDEL', KEYS[1], 'claim', 'till')
return 1

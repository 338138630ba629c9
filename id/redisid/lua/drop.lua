-- ARGV: 1 a claim that is given up, so that another client need not wait for its end.
if alive and claim == ARGV[1] then redis.call('HDEL', KEYS[1], 'claim', 'till') end
return 0

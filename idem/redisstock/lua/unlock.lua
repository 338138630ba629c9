-- KEYS: 1 the lock of the sweep. ARGV: 1 its holder.
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 0

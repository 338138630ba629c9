-- Units that have not arrived cannot arrive any more. KEYS: 4 the mark of the loan. Returns
-- whether they had arrived.
if redis.call('GET', KEYS[4]) == 'done' then return 1 end
redis.call('DEL', KEYS[4])
return 0

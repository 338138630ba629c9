-- KEYS: as in queue.lua and format.lua. ARGV: 1 the new
-- capacity. Returns 1; 0 when nobody is there; as text, what the resource is in use as if
-- it is no semaphore; or {0, format} when clients of another format live there.
-- It gives nothing out, so that it need not know of restarts: who is first in line
-- is told to look, and hands on what is left.
--OTHER--
local head = redis.call('GET', KEYS[1])
if not head then return 0 end
local keep = 3600000 -- who is there has seen to as much, or more
--QUEUE--
load(head)
reap()
redis.call('ZREM', KEYS[3], '') -- nothing: but a full server refuses nothing after what needs no memory
local is = kind
local discipline = string.match(kind, '^semaphore:%d+(:.)$')
if discipline then kind = 'semaphore:' .. ARGV[1] .. discipline end
local first = redis.call('ZRANGE', KEYS[3], 0, 0)[1]
local waits = first and get(first)
save()
if n == 0 then return 0 end
if waits then send(waits[1], 'f' .. US .. first) end
return discipline and 1 or is

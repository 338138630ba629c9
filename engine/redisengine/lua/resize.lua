-- Changes the capacity of a semaphore. The script gives nothing out, so it needs to know
-- nothing of restarts. The first waiter is told to look, and hands on the rest.
--
-- KEYS: as in queue.lua and format.lua.
-- ARGV:
--   1. the new capacity
--
-- Returns one of these:
--   - 1
--   - 0: nobody is there
--   - a text: the resource is no semaphore, and is in use as this kind
--   - {0, format}: clients of another format live there
--OTHER--
local head = redis.call('GET', KEYS[1])
if not head then return 0 end
local keep = 3600000 -- the clients that are there have asked for as much, or more
--QUEUE--
load(head)
reap()
redis.call('ZREM', KEYS[3], '') -- removes nothing, but a full server refuses nothing after a command that needs no memory
local is = kind
fresh = true -- as in enter.lua
local discipline = string.match(kind, '^semaphore:%d+(:.)$')
if discipline then kind = 'semaphore:' .. ARGV[1] .. discipline end
local first = redis.call('ZRANGE', KEYS[3], 0, 0)[1]
local waits = first and get(first)
save()
if n == 0 then return 0 end
if waits then send(waits[1], 'f' .. US .. first) end
return discipline and 1 or is

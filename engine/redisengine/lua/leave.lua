-- KEYS: as in queue.lua. ARGV: 1 "T", id and a separator, which is how the head
-- begins if this claim alone holds; 2 the session of who asks, between
-- separators; 3 keep in ms. Returns 1, or 0 when there is no such claim.
local head = redis.call('GET', KEYS[1])
if not head then return 0 end
if string.sub(head, 1, #ARGV[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
  if not string.find(head, ARGV[2], 1, true) then -- evicted: tell the holder
    redis.call('PUBLISH', '--INBOX--' .. string.match(head, '^[^\31]*\31[^\31]*\31([^\31]*)'), 'x\31' .. string.sub(ARGV[1], 2, -2))
  end
  return 1
end
if string.sub(head, 1, 1) == 'T' then return 0 end
local keep = tonumber(ARGV[3])
--QUEUE--
local id = string.sub(ARGV[1], 2, -2)
load(head)
local r = get(id)
if not r then return 0 end
drop(id, r)
if US .. r[1] .. US ~= ARGV[2] then send(r[1], 'x' .. US .. id) end
advance('')
save()
return 1

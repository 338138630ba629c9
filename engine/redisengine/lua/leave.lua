-- ARGV: 1 id, 2 session of who asks, 3 keep in ms, 4 prefix of inboxes.
-- Returns 1, or 0 when there is no such claim.
local head = redis.call('GET', KEYS[1])
if not head then return 0 end
if string.sub(head, 1, 1) == 'T' then -- it alone holds: nobody waits
  local id = ARGV[1]
  if string.sub(head, 2, #id + 2) ~= id .. '\31' then return 0 end
  redis.call('DEL', KEYS[1])
  if not string.find(head, '\31' .. ARGV[2] .. '\31', #id, true) then
    redis.call('PUBLISH', ARGV[4] .. string.match(head, '^[^\31]*\31[^\31]*\31([^\31]*)'), 'x\31' .. id)
  end
  return 1
end
local keep, inbox = tonumber(ARGV[3]), ARGV[4]
--QUEUE--
load(head)
local r = get(ARGV[1])
if not r then return 0 end
drop(ARGV[1], r)
if r[1] ~= ARGV[2] then send(r[1], 'x' .. US .. ARGV[1]) end
advance('')
save()
return 1

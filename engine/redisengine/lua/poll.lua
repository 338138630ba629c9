-- KEYS: as in queue.lua. ARGV: 1 id, 2 keep in ms.
-- Returns the token of a claim; {ms} when it waits and should look again after
-- so long; -1 when there is no such claim. It also keeps the keys from expiring.
local head = redis.call('GET', KEYS[1])
if not head then return -1 end
local keep = tonumber(ARGV[2])
--QUEUE--
if string.sub(head, 1, 1) == 'T' then
  local id, _, r = thin(head)
  if id ~= ARGV[1] or ends_at(r[1]) == 0 then return -1 end
  touch(KEYS[1])
  return tonumber(r[4])
end
load(head)
local r = get(ARGV[1])
if not r or ends_at(r[1]) == 0 then return -1 end
for i = 1, 3 do touch(KEYS[i]) end
if r[4] ~= '0' then return tonumber(r[4]) end
local ms
r, ms = look(ARGV[1])
save()
if not r then return -1 end
if r[4] ~= '0' then return tonumber(r[4]) end
return {ms}

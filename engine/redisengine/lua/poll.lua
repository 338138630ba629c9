-- ARGV: 1 id, 2 keep in ms, 3 prefix of inboxes.
-- Returns the token of a claim; {ms} when it waits and should look again after
-- so long; -1 when there is no such claim. It also keeps the keys from expiring.
local head = redis.call('GET', KEYS[1])
if not head then return -1 end
local keep, inbox = tonumber(ARGV[2]), ARGV[3]
--QUEUE--
if string.sub(head, 1, 1) == 'T' then
  local f = split(string.sub(head, 2))
  if f[1] ~= ARGV[1] or ends_at(f[3]) == 0 then return -1 end
  touch(KEYS[1])
  return tonumber(f[6])
end
load(head)
local r = get(ARGV[1])
if not r or ends_at(r[1]) == 0 then return -1 end
if r[4] ~= '0' then
  touch(KEYS[1])
  touch(KEYS[2])
  touch(KEYS[3])
  return tonumber(r[4])
end
local ms
r, ms = look(ARGV[1])
save()
if not r then return -1 end
if r[4] ~= '0' then return tonumber(r[4]) end
return {ms}

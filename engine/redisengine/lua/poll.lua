-- KEYS: as in queue.lua. ARGV: 1 id, 2 keep in ms, 3 the claim as it waits, if it
-- does, 4 whether to write something in any case (1 or 0).
-- Returns the token of a claim; {ms} when it waits and should look again after
-- so long; -1 when there is no such claim, or -2 when the store may have forgotten
-- it, for it is in a grace. It also keeps the keys from expiring.
local function absent() return redis.call('EXISTS', KEYS[5]) == 1 and -2 or -1 end
local head = redis.call('GET', KEYS[1])
if not head then return absent() end
local keep = tonumber(ARGV[2])
--QUEUE--
fresh = ARGV[4] == '1' -- touch then writes
local form = string.sub(head, 1, 1)
if form ~= 'F' then
  local id, _, r = thin(head)
  if id == ARGV[1] then
    if ends_at(r[1]) == 0 then return absent() end
    touch()
    return tonumber(r[4])
  end
  if form ~= 'W' or not redis.call('ZSCORE', KEYS[3], ARGV[3]) or ends_at(session_of(ARGV[3])) == 0 then return absent() end
  local first = redis.call('ZRANGE', KEYS[3], 0, 0)[1]
  local blocks = first == ARGV[3] and r[1] or session_of(first)
  if ends_at(blocks) > 0 then
    touch()
    return {ends_at(blocks) - now}
  end
  -- the dead are in the way: the queue knows what to do
end
load(head)
local r = get(ARGV[1])
if not r or ends_at(r[1]) == 0 then return absent() end
if r[4] ~= '0' then
  touch()
  return tonumber(r[4])
end
local ms
r, ms = look(ARGV[1])
save()
if not r then return absent() end
if r[4] ~= '0' then return tonumber(r[4]) end
return {ms}

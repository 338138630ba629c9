-- A claim looks whether it was granted. The look also keeps the keys from expiring.
--
-- KEYS: as in queue.lua.
-- ARGV:
--   1. the id
--   2. keep in ms
--   3. the claim as it waits, if the claim waits
--   4. whether to write something in any case (1 or 0)
--
-- Returns one of these:
--   - the token of a granted claim
--   - {ms}: the claim waits, and should look again after so long
--   - -1: the session has ended, or a claim that should hold is not there, or waits there
--   - -2: a claim that should wait is not there
local head = redis.call('GET', KEYS[1])
local keep = tonumber(ARGV[2])
--QUEUE--
local function absent() return ARGV[3] ~= '' and ends_at(session_of(ARGV[3])) > 0 and -2 or -1 end
if not head then return absent() end
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
if not r or ends_at(r[1]) == 0 or r[4] == '0' and ARGV[3] == '' then return absent() end
if r[4] ~= '0' then
  touch()
  return tonumber(r[4])
end
local first = redis.call('ZRANGE', KEYS[3], 0, 0)[1]
local ahead = first and first ~= ARGV[1] and not barging() and get(first)
if ahead and ends_at(ahead[1]) > 0 and redis.call('ZSCORE', KEYS[3], ARGV[1]) then -- the claim ahead does the work
  touch()
  return {ends_at(ahead[1]) - now}
end
local ms
r, ms = look(ARGV[1])
save()
if not r then return absent() end
if r[4] ~= '0' then return tonumber(r[4]) end
return {ms}

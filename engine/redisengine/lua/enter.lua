-- KEYS: as in queue.lua, and
--   7. the session's own key, which lives as long as the session
-- ARGV:
--   1. the claim: id, kind:capacity:discipline, session, owner, weight and label
--   2. whether to wait (1 or 0)
--   3. keep in ms
--   4. the form that the claim allows, X or T
--
-- Returns one of these:
--   - the token
--   - -1: the session has ended; -2: busy; -4: another boot mark
--   - {ms}: the claim waits, and should look again after so long
--   - {-3}: a grace keeps the resource busy
--   - a text: the resource is in use as this kind
--
-- During a grace, the grace's age and its rest in ms follow in the same list, and the token, or 0.
local there = redis.call('EXISTS', KEYS[7], KEYS[7], KEYS[6], KEYS[6], KEYS[5]) -- a key that is named twice counts twice
if there < 4 then return redis.call('EXISTS', KEYS[6]) == 0 and -4 or -1 end
local t = redis.call('TIME')
if there == 4 then -- no grace: if nobody holds, no queue is needed
  if redis.call('SET', KEYS[1], ARGV[4] .. ARGV[1] .. '\31' .. t[1] .. '\31' .. t[2], 'NX', 'PX', ARGV[3]) then
    return t[1] * 1000000 + t[2]
  end
end
local head = redis.call('GET', KEYS[1])
if there == 4 and ARGV[4] == 'X' and string.find(head, '^[XW]') then -- exclusive, and so are all before it
  local id, kind, session = string.match(head, '^.([^\31]*)\31([^\31]*)\31([^\31]*)')
  local me, mine = string.match(ARGV[1], '^([^\31]*)\31([^\31]*)')
  local at = tonumber(redis.call('ZSCORE', KEYS[4], session) or 0)
  local now = t[1] * 1000 + t[2] / 1000
  if me ~= id and mine == kind and at > now then
    if ARGV[2] == '0' then
      redis.call('ZREM', KEYS[3], ARGV[1])
      return -2
    end
    if string.sub(head, 1, 1) == 'X' then
      redis.call('DEL', KEYS[3])
      redis.call('SET', KEYS[1], 'W' .. string.sub(head, 2), 'KEEPTTL')
    end
    local last = redis.call('ZRANGE', KEYS[3], -1, -1, 'WITHSCORES')[2] -- the clock may stand, as within a batch, or was set back
    redis.call('ZADD', KEYS[3], 'NX', math.max(t[1] * 1000000 + t[2], (last or 0) + 1), ARGV[1])
    local first, left = redis.call('ZRANGE', KEYS[3], 0, 0)[1], redis.call('PTTL', KEYS[1])
    if first == ARGV[1] or left < ARGV[3] / 2 then -- as touch
      for i = 1, 3, 2 do redis.call('PEXPIRE', KEYS[i], math.max(ARGV[3], left)) end
    end
    if first ~= ARGV[1] then
      at = tonumber(redis.call('ZSCORE', KEYS[4], string.match(first, '^[^\31]*\31[^\31]*\31([^\31]*)')) or 0)
    end
    return {math.max(math.ceil(at - now), 0)}
  end
end
local keep = tonumber(ARGV[3])
--QUEUE--
local claim = {string.match(ARGV[1], SIX)}
local id, wait = claim[1], ARGV[2] == '1'
if head then
  load(head)
else
  redis.call('DEL', KEYS[2], KEYS[3])
  kind, used, last, seq, n, cursor = claim[2], 0, 0, 0, 0, '0'
  cap = tonumber(string.match(kind, ':(%d+)'))
end

local function reply(r, ms)
  save()
  local token = r and tonumber(r[4]) or 0
  return token > 0 and grace_end() == 0 and token or told(ms or 0, token)
end

local before = get(id)
if before and ends_at(before[1]) == 0 then -- of a lost membership, restored with old data
  drop(id, before)
  before = nil
end
if before then -- asked again: the reply was lost, or replicas were late, and WAIT waits for what this script writes
  fresh = true
  local r, ms = look(id)
  if wait or r[4] ~= '0' then return reply(r, ms) end
  drop(id, r)
  advance('')
  save()
  return -2
end
if claim[4] ~= id then
  claim[4] = shared(claim[4])
  bury(claim[4])
end
advance('')
if n > 0 and kind ~= claim[2] and redis.call('ZCARD', KEYS[3]) == 0 then reap(not wait) end
if n == 0 then
  kind = claim[2]
  cap = tonumber(string.match(kind, ':(%d+)'))
end
if kind ~= claim[2] then
  save()
  return kind
end

local r = {claim[3], claim[4], claim[5], '0', string.format('%.0f', us), claim[6]}
local mine = own(r[2], id)
local first = redis.call('ZCARD', KEYS[3]) == 0
local may = mine >= tonumber(r[3]) or first or barging() -- an upgrade passes nobody either
local granted = may and try(id, r)
local at = 0
if may and not granted then -- next in line: do the dead hold?
  at = reap(not (wait and first))
  advance('')
  mine = own(r[2], id)
  granted = try(id, r)
end
fresh = fresh or n == 0
if granted then
  n = n + 1
  hold(id, r)
  return reply(r)
end
if mine > 0 or not wait then
  save()
  if grace_end() > 0 then return told(-3) end
  return -2
end
n, seq, fresh = n + 1, seq + 1, fresh or first
put(id, r)
redis.call('ZADD', KEYS[3], seq, id)
if not first then
  at = ends_at(get(redis.call('ZRANGE', KEYS[3], 0, 0)[1])[1])
end
if grace_end() > 0 and (at == 0 or grace_end() < at) then at = grace_end() end
return reply(r, math.max(at - now, 0))

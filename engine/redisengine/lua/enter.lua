-- ARGV: 1 id, 2 session, 3 kind:capacity:discipline, 4 owner, 5 weight,
-- 6 label, 7 wait (1 or 0), 8 keep in ms, 9 prefix of inboxes.
-- Returns the token; or -1 session gone, -2 busy, -3 busy for the grace; or
-- {ms} when the claim waits and should look again after so long; or, as text,
-- what the resource is in use as.
local head = redis.call('GET', KEYS[1])
if not head then -- nobody holds: no queue is needed
  local s = redis.call('ZMSCORE', KEYS[4], ARGV[2], '!')
  local t = redis.call('TIME')
  local now = t[1] * 1000
  if not s[1] or tonumber(s[1]) <= now + t[2] / 1000 then return -1 end
  if not s[2] or tonumber(s[2]) <= now + t[2] / 1000 then
    local token = t[1] * 1000000 + t[2]
    redis.call('SET', KEYS[1], 'T' .. ARGV[1] .. '\31' .. ARGV[3] .. '\31' .. ARGV[2] .. '\31' .. ARGV[4] .. '\31' ..
      ARGV[5] .. '\31' .. string.format('%.0f', token) .. '\31' .. now .. '\31' .. ARGV[6], 'PX', ARGV[8])
    return token
  end
end
local keep, inbox = tonumber(ARGV[8]), ARGV[9]
--QUEUE--
local id, wait = ARGV[1], ARGV[7] == '1'
if ends_at(ARGV[2]) == 0 then return -1 end
if head then
  load(head)
else
  kind, used, last, seq, n = ARGV[3], 0, 0, 0, 0
  cap = tonumber(string.match(kind, ':(%d+)'))
end

local function reply(r, ms)
  save()
  if r and r[4] ~= '0' then return tonumber(r[4]) end
  return {ms}
end

if get(id) then -- asked again: the reply was lost
  local r, ms = look(id)
  if wait or r[4] ~= '0' then return reply(r, ms) end
  drop(id, r)
  advance('')
  save()
  return -2
end
advance('')
if n > 0 and kind ~= ARGV[3] and redis.call('ZCARD', KEYS[3]) == 0 then reap() end
if n == 0 then
  kind = ARGV[3]
  cap = tonumber(string.match(kind, ':(%d+)'))
end
if kind ~= ARGV[3] then
  local is = kind
  save()
  return is
end

local r = {ARGV[2], ARGV[4], ARGV[5], '0', string.format('%.0f', now), ARGV[6]}
local mine = own(r[2], id)
local first = redis.call('ZCARD', KEYS[3]) == 0
local may = mine > 0 or first or barging()
local granted = may and try(id, r)
local at = 0
if may and not granted then -- next in line: do the dead hold?
  at = reap()
  advance('')
  granted = try(id, r)
end
if granted then
  n = n + 1
  hold(id, r)
  return reply(r)
end
if mine > 0 or not wait then
  save()
  if ends_at('!') > 0 then return -3 end
  return -2
end
n, seq = n + 1, seq + 1
put(id, r)
redis.call('ZADD', KEYS[3], seq, id)
if not first then at = ends_at(get(redis.call('ZRANGE', KEYS[3], 0, 0)[1])[1]) end
if ends_at('!') > 0 and (at == 0 or ends_at('!') < at) then at = ends_at('!') end
return reply(r, math.max(at - now, 0))

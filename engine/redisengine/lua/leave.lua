-- KEYS: as in queue.lua.
-- ARGV:
--   1. the id and a separator: the head goes on so after its form if this claim holds alone
--   2. the asking session between separators, or a text that is no session
--   3. keep in ms
--   4. the claim as it waits, if the client knows that; else the script looks at all waiting claims
--
-- Returns 1, or 0 when there is no such claim.
local function gone() -- or asked again, because replicas were late: WAIT waits for what this script writes
  return 0 * redis.call('PEXPIRE', KEYS[4], math.max(ARGV[3], redis.call('PTTL', KEYS[4])))
end
local head = redis.call('GET', KEYS[1])
if not head then return gone() end
local holds = string.find(head, ARGV[1], 2, true) == 2
local alone = string.find(head, '^[XT]')
if holds and alone then redis.call('DEL', KEYS[1]) end
if holds and alone and string.find(head, ARGV[2], 1, true) then return 1 end
local function evicted(record) -- tell it, unless it is its own session that asks
  if not string.find(record, ARGV[2], 1, true) then
    redis.call('PUBLISH', '--INBOX--' .. string.match(record, '^[^\31]*\31[^\31]*\31([^\31:]*)'), 'x\31' .. string.sub(ARGV[1], 1, -2))
  end
  return 1
end
if alone then return holds and evicted(head) or gone() end
local form = string.sub(head, 1, 1)
if form == 'W' and holds and redis.call('EXISTS', KEYS[5], KEYS[6], KEYS[6]) == 2 then -- the first that lives gets it
  local t = redis.call('TIME')
  local s, us = string.match(head, '^' .. string.rep('[^\31]*\31', 6) .. '(%d+)\31(%d+)')
  local token = math.max(s * 1000000 + us + 1, t[1] * 1000000 + t[2])
  while true do
    local pop = redis.call('ZPOPMIN', KEYS[3])
    local first = pop[1]
    if not first then
      redis.call('DEL', KEYS[1])
      return evicted(head)
    end
    local id, session = string.match(first, '^([^\31]*)\31[^\31]*\31([^\31]*)')
    if tonumber(redis.call('ZSCORE', KEYS[4], session) or 0) > t[1] * 1000 + t[2] / 1000 then
      local text = string.format('%.0f', token)
      redis.call('SET', KEYS[1], 'W' .. first .. '\31' .. string.sub(text, 1, -7) .. '\31' .. string.sub(text, -6) .. '\31' .. string.format('%.0f', pop[2]), 'KEEPTTL')
      redis.call('PUBLISH', '--INBOX--' .. string.match(session, '^[^:]*'), 'g\31' .. id .. '\31' .. text)
      return evicted(head)
    end
  end
end
if form == 'W' and not holds then
  local removed = redis.call('ZREM', KEYS[3], ARGV[4])
  if removed == 1 or ARGV[4] ~= '' and KEYS[4] ~= KEYS[6] then return removed == 1 and 1 or gone() end -- in a cluster a session may have had another id
  for _, record in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do -- of another session
    if string.sub(record, 1, #ARGV[1]) == ARGV[1] then
      redis.call('ZREM', KEYS[3], record)
      return evicted(record)
    end
  end
  return gone()
end
local keep = tonumber(ARGV[3])
--QUEUE--
local id = string.sub(ARGV[1], 1, -2)
load(head)
local r = get(id)
if not r then return gone() end
drop(id, r)
if US .. r[1] .. US ~= ARGV[2] then send(r[1], 'x' .. US .. id) end
advance('')
save()
return 1

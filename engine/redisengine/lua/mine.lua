-- Looks for the claims of a session on one name: the holders and the next waiters, and of many claims a part.
-- KEYS: 1 head, 2 claims, 3 waiting. ARGV: 1 session, 2 where the last look ended or 0, 3 how many make a part.
-- Returns where the next look begins, and the ids of the claims.
local head = redis.call('GET', KEYS[1]) or ''
local form, out = string.sub(head, 1, 1), {'0'}
local function add(id, session)
  if session == ARGV[1] then out[#out + 1] = id end
end
if form == 'F' then
  local part = redis.call('HSCAN', KEYS[2], ARGV[2], 'MATCH', 'c*', 'COUNT', ARGV[3])
  out[1] = part[1]
  for i = 1, #part[2], 2 do add(string.sub(part[2][i], 2), string.match(part[2][i + 1], '^[^\31:]*')) end
elseif form ~= '' then
  local all = form == 'W' and redis.call('ZRANGE', KEYS[3], 0, ARGV[3] - 2) or {}
  all[#all + 1] = string.sub(head, 2)
  for _, record in ipairs(all) do add(string.match(record, '^([^\31]*)\31[^\31]*\31([^\31:]*)')) end
end
return out

-- Looks for the claims of a session on one name of a cluster. KEYS: 1 head, 2 claims, 3
-- waiting. ARGV: 1 session. Returns their ids.
local head, out = redis.call('GET', KEYS[1]) or '', {}
local form = string.sub(head, 1, 1)
local function add(id, session)
  if session == ARGV[1] then out[#out + 1] = id end
end
if form == 'F' then
  local all = redis.call('HGETALL', KEYS[2])
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, 1) == 'c' then add(string.sub(all[i], 2), string.match(all[i + 1], '^[^\31:]*')) end
  end
elseif form ~= '' then
  local all = form == 'W' and redis.call('ZRANGE', KEYS[3], 0, -1) or {}
  all[#all + 1] = string.sub(head, 2)
  for _, record in ipairs(all) do add(string.match(record, '^([^\31]*)\31[^\31]*\31([^\31:]*)')) end
end
return out

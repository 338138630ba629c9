-- KEYS as in queue.lua. Returns {now in ms, what it is in use as, then for each
-- claim of a live session its id and its record}, and writes nothing.
local head = redis.call('GET', KEYS[1])
--QUEUE--
local out = {now}
if not head then return out end

local function add(id, r)
  if ends_at(r[1]) == 0 then return end
  out[#out + 1] = id
  out[#out + 1] = table.concat(r, US)
end

if string.sub(head, 1, 1) ~= 'F' then
  local id, is, r = thin(head)
  out[2] = is
  add(id, r)
  for id, r in behind(head) do add(id, r) end
  return out
end
out[2] = string.match(head, '^F([^\31]*)')
local all = redis.call('HGETALL', KEYS[2])
for i = 1, #all, 2 do
  local id = string.match(all[i], '^c(.*)')
  if id and not redis.call('ZSCORE', KEYS[3], id) then add(id, {string.match(all[i + 1], SIX)}) end
end
for _, id in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do add(id, get(id)) end
return out

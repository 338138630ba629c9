-- KEYS as in queue.lua. Returns {now in ms, what it is in use as, then for each
-- claim of a live session its id and its record}, and writes nothing.
local US, out = '\31', {}
local t = redis.call('TIME')
out[1] = t[1] * 1000 + math.floor(t[2] / 1000)
local head = redis.call('GET', KEYS[1])
if not head then return out end

local function add(id, record)
  local session = string.match(record, '^[^' .. US .. ']*')
  if tonumber(redis.call('ZSCORE', KEYS[4], session) or 0) > out[1] then
    out[#out + 1] = id
    out[#out + 1] = record
  end
end

if string.sub(head, 1, 1) ~= 'F' then
  local F = '([^' .. US .. ']*)' .. US
  local id, kind, session, owner, weight, label, s, us, _ = string.match(head, '^.' .. string.rep(F, 7) .. '(.*)$')
  out[2] = kind
  add(id, table.concat({session, owner, weight, string.format('%.0f', s * 1000000 + us), s .. '000', label}, US))
  local waiting = redis.call('ZRANGE', KEYS[3], 0, -1, 'WITHSCORES')
  for i = 1, #waiting, 2 do
    id, _, session, owner, weight, label = string.match(waiting[i], '^' .. string.rep(F, 5) .. '(.*)$')
    add(id, table.concat({session, owner, weight, '0', string.format('%.0f', waiting[i + 1] / 1000), label}, US))
  end
  return out
end
out[2] = string.match(head, '^F([^' .. US .. ']*)')
local all = redis.call('HGETALL', KEYS[2])
for i = 1, #all, 2 do
  if string.sub(all[i], 1, 1) == 'c' and not redis.call('ZSCORE', KEYS[3], string.sub(all[i], 2)) then
    add(string.sub(all[i], 2), all[i + 1])
  end
end
for _, id in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do add(id, redis.call('HGET', KEYS[2], 'c' .. id)) end
return out

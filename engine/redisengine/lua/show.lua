-- Reads the claims of a resource, and writes nothing.
--
-- KEYS: as in queue.lua and format.lua.
--
-- Returns {0, format} when clients of another format live there, else a list:
--   - now in us
--   - the age of the grace and its rest in ms, or -1
--   - the kind as which the resource is in use
--   - for each claim of a live session: its id, its record, and when that session ends in ms
--OTHER--
local head = redis.call('GET', KEYS[1])
--QUEUE--
local rest = redis.call('PTTL', KEYS[5])
local out = {us, rest > 0 and now - (tonumber(redis.call('GET', KEYS[5]) or '') or now + 1) or -1, math.max(rest, -1)}
-- A server that was restarted begins its grace with the first session.
local run, longest = string.match(mark or '', '^[^\31]*\31(%w*)\31%w*\31(%d+)')
local info = run and rest <= 0 and redis.pcall('INFO', 'server')
if type(info) == 'string' and string.match(info, 'run_id:(%w+)') ~= run then out[3] = tonumber(longest) end
if not head then return out end

local function add(id, r)
  if ends_at(r[1]) == 0 then return end
  if r[2] ~= id then r[2] = string.sub(r[2], 2) end
  out[#out + 1] = id
  out[#out + 1] = table.concat(r, US)
  out[#out + 1] = ends_at(r[1])
end

if string.sub(head, 1, 1) ~= 'F' then
  local id, is, r = thin(head)
  out[4] = is
  add(id, r)
  for id, r in behind(head) do add(id, r) end
  return out
end
out[4] = string.match(head, '^F([^\31]*)')
local all = redis.call('HGETALL', KEYS[2])
for i = 1, #all, 2 do
  local id = string.match(all[i], '^c(.*)')
  if id and not redis.call('ZSCORE', KEYS[3], id) then add(id, {string.match(all[i + 1], SIX)}) end
end
for _, id in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do
  local r = get(id)
  if r then add(id, r) end
end
return out

-- The prefix of each script of a part.
--
-- KEYS:
--   1. the part, a hash: its free units n, its reserved units r, how often units came in, the number of parts
--   2. the reservations, by the time at which they expire
--   3. the amounts of the reservations
-- ARGV:
--   1. the number of parts
local parts = redis.call('HGET', KEYS[1], 'parts')
if parts and parts ~= ARGV[1] then
  return redis.error_reply('PAWLPARTS the stock has ' .. string.sub(parts, 1, 40) .. ' parts, not ' .. ARGV[1])
end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local function text(n) return string.format('%.0f', n) end
local function comes(n)
  redis.call('HSET', KEYS[1], 'parts', ARGV[1])
  redis.call('HINCRBY', KEYS[1], 'n', n)
  redis.call('HINCRBY', KEYS[1], 'in', 1)
end
local function ends(id)
  local n = redis.call('HGET', KEYS[3], id) or '0' -- somebody deleted the amounts: the units are lost, and the part goes on
  redis.call('HDEL', KEYS[3], id)
  redis.call('ZREM', KEYS[2], id)
  if n ~= '0' then redis.call('HINCRBY', KEYS[1], 'r', '-' .. n) end
  return n
end
local due = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', text(now), 'LIMIT', 0, 100)
for _, id in ipairs(due) do
  comes(ends(id))
end
local more = #due == 100 -- others may have expired too: the client calls again
local free = tonumber(redis.call('HGET', KEYS[1], 'n') or '0')

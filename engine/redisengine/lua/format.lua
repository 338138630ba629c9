-- Ends a script that finds clients of another format. The last KEYS: boot mark, sessions. In a
-- cluster the mark is in another slot, see mark.lua.
local mark = redis.call('GET', KEYS[#KEYS - 1])
local format = mark and (string.match(mark, '^([^\31]*)\31%w*\31%w*\31%d+\31%d+$') or '1')
if mark and format ~= '--FORMAT--' then
  local t, last = redis.call('TIME'), redis.call('ZRANGE', KEYS[#KEYS], -1, -1, 'WITHSCORES')[2]
  if tonumber(last or 0) > t[1] * 1000 + t[2] / 1000 then return {0, format} end
end

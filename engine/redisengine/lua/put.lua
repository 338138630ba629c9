-- KEYS: 1 value, and those of format.lua. ARGV: 1 expected version, 2 data, 3 delete (1
-- or 0), 4 channel of its watchers. Returns the new version (0: deleted), {version} when it
-- is another than expected, or {0, format} when clients of another format live there.
--OTHER--
local is = redis.call('GET', KEYS[1])
local version = is and string.match(is, '^%d+') or '0'
if version ~= ARGV[1] then return {version} end
local t = redis.call('TIME')
local new = 0
if ARGV[3] == '1' then
  redis.call('DEL', KEYS[1])
else
  -- What needs no memory goes first: then a full server refuses no change. DEL would: a slot that moves takes no new keys.
  if is then redis.call('PEXPIRE', KEYS[1], 3600000) end -- SET undoes that
  new = math.max(tonumber(version) + 1, t[1] * 1000000 + t[2])
  redis.call('SET', KEYS[1], string.format('%.0f', new) .. '\31' .. ARGV[2])
end
redis.call('PUBLISH', ARGV[4], 'v')
return new

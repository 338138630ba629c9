-- KEYS: those of format.lua, and
--   1. the value
-- ARGV:
--   1. the expected version
--   2. the data
--   3. whether to delete (1 or 0)
--   4. the channel of the value's watchers
--
-- Returns one of these:
--   - the new version, which is 0 if the value was deleted
--   - {version}: the value has this version, and not the expected one
--   - {0, format}: clients of another format live there
--OTHER--
local is = redis.call('GET', KEYS[1])
local version = is and string.match(is, '^%d+') or '0'
if version ~= ARGV[1] then return {version} end
local t = redis.call('TIME')
local new = 0
if ARGV[3] == '1' then
  redis.call('DEL', KEYS[1])
else
  -- A command that needs no memory goes first: then a full server refuses no change. That command is not DEL, because a slot that moves takes no new keys.
  if is then redis.call('PEXPIRE', KEYS[1], 3600000) end -- SET undoes that
  new = math.max(tonumber(version) + 1, t[1] * 1000000 + t[2])
  redis.call('SET', KEYS[1], string.format('%.0f', new) .. '\31' .. ARGV[2])
end
redis.call('PUBLISH', ARGV[4], 'v')
return new

-- ARGV:
--   1. a claim that nobody had
--   2. for how many ms the claim is
--   3. how many numbers are needed
--   4. the life that went back, or nothing
--
-- Returns one of these:
--   - {1, limit}: the caller has to raise the mark
--   - {0}: there is nothing to do
--   - {-1, ms}: another client raises the mark
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
if not alive and not pawl and redis.call('EXISTS', KEYS[1]) == 1 then
  return redis.error_reply('WRONGTYPE the hash has no field "pawl"')
end
if pawl and string.sub(pawl, 1, 10) ~= 'counter 1 ' then
  return redis.error_reply('WRONGTYPE the hash is of another program or format: its field "pawl" is "' .. string.sub(pawl, 1, 40) .. '"')
end
if alive and life == ARGV[4] then alive = false end
if alive and life and tonumber(left) >= tonumber(ARGV[3]) then return {0} end
if alive and claim then
  local wait = (tonumber(till) or 0) - now
  if wait > 0 and wait <= tonumber(ARGV[2]) then return {-1, wait} end -- more is of a clock that was set back
end
if not alive then
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1], 'pawl', mine, 'reign', reign, 'form', '', 'life', '', 'limit', '', 'left', '', 'claim', '', 'till', '')
  local small = redis.call('OBJECT', 'ENCODING', KEYS[1]) -- which RESTORE gives to a dump
  redis.call('HSET', KEYS[1], 'large', string.rep('.', 8192))
  redis.call('HDEL', KEYS[1], 'large', 'life', 'limit', 'left')
  local large = redis.call('OBJECT', 'ENCODING', KEYS[1])
  if small == large then
    redis.call('DEL', KEYS[1])
    return redis.error_reply('UNSUPPORTED the settings hash-max-listpack-entries and hash-max-listpack-value give all hashes the form ' .. small .. ', by which a restored key is noticed')
  end
  redis.call('HSET', KEYS[1], 'form', large)
end
redis.call('HSET', KEYS[1], 'claim', ARGV[1], 'till', string.format('%.0f', now + ARGV[2]))
if pawl ~= mine or not limit or not string.find(limit, '^%d+$') then limit = '0' end
return {1, limit}

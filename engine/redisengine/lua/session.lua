-- Looks at the boot mark, and begins a session if one is named.
--
-- KEYS:
--   1. the sessions
--   2. the boot mark
--   3. the grace
--   4. the session's own key
--   5. the beliefs
-- ARGV:
--   1. the format of this build
--   2. a mark that nobody has
--   3. for how many ms the client may believe in a grant (0: the client is an operator)
--   4. the mark that the client knew until now, if any
--   5. the session, if a session begins
--   6. the session's TTL in ms
--   7. keep in ms
--   8. whether the operator says that the server is new (1 or 0)
--
-- Returns one of these:
--   - {1, mark, INFO about the server and its memory if the client does not know the mark}
--   - {0, format}: another format is in use, or the server is said to be new and is not
--
-- The boot mark has five fields:
--   - the format
--   - the id that the server gave itself when the server started
--   - a mark of this life of this database
--   - the longest time for which a client may have believed in a grant, in ms
--   - when that life began, in ms
--
-- The beliefs are such times in ms. Each is scored by when that time counts no more. The key
-- of the life has the id that the server took at its last promotion.
--
-- Another server, a promotion since, or a missing key say that the store may have forgotten
-- grants. Then the store gets another mark, and nothing is given out as long as a holder may believe.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local believes = tonumber(ARGV[3])
-- A command that needs no memory goes first: then a full server refuses none of the others.
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local function uptime(info) return tonumber(string.match(info, 'uptime_in_seconds:(%d+)') or 0) * 1000 end
local info = redis.pcall('INFO', 'server')
if type(info) ~= 'string' then return redis.error_reply('NOPERM the user may not ask INFO, by which a restart of the server is noticed') end
local is = string.match(info, 'run_id:(%w+)') or ''
local replication = redis.call('INFO', 'replication')
local reign = string.match(replication, 'master_replid:(%w+)') or ''
local was = redis.call('GET', KEYS[2])
local format, run, mark, longest, began
if was then
  format, run, mark, longest, began = string.match(was, '^([^\31]*)\31(%w*)\31(%w*)\31(%d+)\31(%d+)$')
  format = format or '1'
  if ARGV[8] == '1' then return {0, format} end
  if format ~= ARGV[1] then -- others use the format, or used it and are gone
    if redis.call('ZCARD', KEYS[1]) > 0 then return {0, format} end
    mark = nil
  end
end
longest, began = tonumber(longest or 0), tonumber(began or 0)
local function begin(ms, since)
  if ms > 0 and redis.call('PTTL', KEYS[3]) < ms then redis.call('SET', KEYS[3], string.format('%.0f', since), 'PX', ms) end
end
-- note keeps for how long somebody may believe, until no such client was seen for a day or twice
-- that long. Clients note the time again before. A shorter time then counts no longer than that.
local function note(ms)
  if ms > 0 then redis.call('ZADD', KEYS[5], now + math.max(86400000, 2 * ms), ms) end
  for _, noted in ipairs(redis.call('ZRANGE', KEYS[5], 0, -1)) do
    longest = math.max(longest, noted)
    if tonumber(noted) < ms then redis.call('ZREM', KEYS[5], noted) end
  end
end
local function write()
  redis.call('SET', KEYS[2], table.concat({ARGV[1], is, mark, string.format('%.0f', longest), string.format('%.0f', began)}, '\31'))
end
-- same reports whether the server was not promoted since it wrote the key of the life. A server
-- also takes another id for its first replica, and after an hour without a replica. Then the server
-- has no id from before.
local function same(at)
  local written = redis.call('GET', at)
  if written == reign then return true end
  local kept = written == '1' -- by an older build, which did not note the id
    or written and not string.find(replication, 'master_replid2:0*[1-9a-f]')
  if kept then redis.call('SET', at, reign) end
  return kept
end
if mark and run == is and same(KEYS[2] .. ':' .. mark) then
  -- A holder that believed before all this began must have ended before anything is given out.
  if ARGV[4] ~= '' and ARGV[4] ~= mark then begin(began + believes - now, began) end
  local before = longest
  if not redis.call('ZSCORE', KEYS[5], before) then note(before) end -- of an older build
  redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', now)
  longest = 0
  note(believes)
  if longest ~= before then write() end
elseif mark or believes > 0 or ARGV[8] == '1' then -- an operator knows not how long to wait where all is lost
  local since = was and run ~= is and now - uptime(info) or now
  if mark then redis.call('DEL', KEYS[2] .. ':' .. mark) end
  mark, began = ARGV[2], now
  redis.call('SET', KEYS[2] .. ':' .. mark, reign)
  note(believes)
  write()
  if ARGV[8] == '0' then begin(longest, since) end
end
if ARGV[5] ~= '' then
  redis.call('ZADD', KEYS[1], now + ARGV[6], ARGV[5])
  redis.call('SET', KEYS[4], '1', 'PX', ARGV[6])
  if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[7]) / 2 then redis.call('PEXPIRE', KEYS[1], ARGV[7]) end
end
return {1, mark or '', mark ~= ARGV[4] and info .. redis.call('INFO', 'memory') or ''}

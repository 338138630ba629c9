-- The prefix of each script.
--
-- KEYS:
--   1. the counter, a hash
--
-- The hash has these fields:
--   - pawl: its format and its own name
--   - reign and form: where the hash was written
--   - life: a nonce for each row of numbers that was begun
--   - limit: the last number that may be given
--   - left: how many numbers there are up to the limit
--   - claim and till: the client that raises the mark, and until when
--
-- A master makes up its master_replid when it is started or promoted, so an id names one reign.
-- A counter that was loaded from a file, or copied from another server, was written in another reign.
local info = redis.pcall('INFO', 'replication')
if type(info) ~= 'string' then return redis.error_reply('NOPERM the user may not ask INFO, by which another server is noticed') end
local reign = string.match(info, '\nmaster_replid:(%w+)')
if not reign then return redis.error_reply('UNSUPPORTED the server has no master_replid, by which another server is noticed') end
if not string.find(info, '\nrole:master', 1, true) then return redis.error_reply('READONLY the server is no master') end
local is = redis.pcall('HMGET', KEYS[1], 'pawl', 'reign', 'form', 'life', 'limit', 'left', 'claim', 'till')
if is.err then return is end
local pawl, was, form, life, limit, left, claim, till = unpack(is)
-- At most 55 bytes, because a long text in a small hash gives it the form of a large one.
local mine = 'counter 1 ' .. (#KEYS[1] <= 40 and KEYS[1] or 'sha1:' .. redis.sha1hex(KEYS[1]))
-- A small hash that was a large one keeps the form of a large one until it is dumped.
local alive = pawl == mine and was == reign and redis.call('OBJECT', 'ENCODING', KEYS[1]) == form
if life and not (string.find(left or '', '^%d+$') and string.find(limit or '', '^%d+$')) then alive = false end -- somebody wrote to it

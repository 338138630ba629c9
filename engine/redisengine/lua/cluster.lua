-- The prefix of each script that gives something out, in a cluster.
--
-- KEYS: as in queue.lua, and
--   7. the key of the session that enters
-- ARGV: those of the script, and
--   5. the grace in ms
--   6. the session as this name knows the session, if a claim enters
--   7. the TTL of the session in ms
--   8. whether the session is new here (1 or 0)
--
-- Returns -1 when the session has ended here.
do
  local t = redis.call('TIME')
  -- A node that was started may have forgotten. A save is no older than the
  -- start, so a save that is old enough spares the question.
  local ok, saved = pcall(redis.call, 'LASTSAVE')
  if not ok or saved > tonumber(t[1]) or (t[1] - saved - 1) * 1000 < tonumber(ARGV[5]) then
    local up = tonumber(string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(-?%d+)'))
    -- The node's clock was set back to before its start. The node does not know how long
    -- ago the start was, so each name is kept for one grace, once.
    if up < 0 then up = redis.call('SET', KEYS[5] .. ':back', '1', 'NX', 'PX', ARGV[5] - up * 1000) and 0 or ARGV[5] end
    local left = ARGV[5] - (up - 1) * 1000
    if left > 0 and redis.call('PTTL', KEYS[5]) < left then
      redis.call('SET', KEYS[5], string.format('%.0f', (t[1] - up) * 1000), 'PX', left)
    end
  end
  if ARGV[6] ~= '' then
    local member = function(KEYS, ARGV)
--MEMBER--
    end
    if member({KEYS[4], KEYS[7]}, {ARGV[6], ARGV[7], ARGV[8]}) == 0 then return -1 end
  end
end

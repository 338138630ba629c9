-- KEYS: the mark of a cluster, which is the format of its clients. ARGV: our format, and for how many ms the
-- mark has to stay, or 0. Returns the format that is there. A full node takes no new mark, and keeps the mark that it has.
local is, stays = redis.call('GET', KEYS[1]), tonumber(ARGV[2])
if is and is ~= ARGV[1] then return is end
if is and stays > redis.call('PTTL', KEYS[1]) then redis.call('PEXPIRE', KEYS[1], stays) end
if not is and stays > 0 then redis.call('SET', KEYS[1], ARGV[1], 'PX', stays) end
return ARGV[1]

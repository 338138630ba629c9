-- The weighted claim queue of one resource, as package queue defines it.
--
-- KEYS:
--   1. the head
--   2. the claims
--   3. the waiting claims
--   4. the sessions, scored by when they end in ms
--   5. the grace
--   6. the boot mark that the client knows (in a cluster 4 again)
--
-- The head begins with the form of the resource:
--   - T: one claim holds and nobody waits. The head is that claim.
--   - X: as T, and the claim excludes all others, first come first served.
--   - W: as X, and others of its kind wait, in a sorted set in order of arrival.
--   - F: everything else. The head has counters, the hash of the claims has the records,
--     and the sorted set has the ids of the waiting claims.
--
-- In that hash the field 'c' .. id is a record. The field 'o' .. owner lists the granted claims of
-- an owner that is not a claim id. Such an owner is stored with a plus before the name.
--
-- The lines at the top of the scripts do all of T, X and W. A resource for which they do not
-- suffice becomes F, and stays F until nobody is left.
--
-- While the key of the grace lives, or where the mark is another, nothing new is given out.
--
-- The keys of a name expire together. A step lets them live longer, and never shorter: so no
-- client loses the keys that it needs by the step of another.
local US = '\31'
local kind, cap, used, last, seq, n, cursor, was
local t = redis.call('TIME')
local us = t[1] * 1000000 + t[2]
local now = math.floor(us / 1000)
local ends, grace = {}, nil

local SIX = '^([^\31]*)\31([^\31]*)\31([^\31]*)\31([^\31]*)\31([^\31]*)\31(.*)$'

-- ends_at is when a session ends unless it is renewed; 0 when it has ended.
local function ends_at(session)
  if not ends[session] then
    local score = tonumber(redis.call('ZSCORE', KEYS[4], session) or 0)
    ends[session] = score > now and score or 0
  end
  return ends[session]
end

-- grace_end is when something may be given out again; 0 when it may now.
local function grace_end()
  if not grace then
    grace = 0
    if redis.call('EXISTS', KEYS[5], KEYS[6], KEYS[6]) ~= 2 then -- or the mark is another, which the client is about to learn
      grace = now + math.max(redis.call('PTTL', KEYS[5]), redis.call('EXISTS', KEYS[6]) == 0 and 1000 or 1)
    end
  end
  return grace
end

-- told is a reply with the age of a grace, its rest in ms and a token.
local function told(first, token)
  if grace_end() == 0 then return {first} end
  local began = tonumber(redis.call('GET', KEYS[5]) or '')
  return {first, began and math.max(now - began, 0) or -1, grace_end() - now, token or 0}
end

-- touch keeps the keys from expiring. Fresh: some may be new, and do not expire yet.
local fresh = false
local function touch()
  local left = redis.call('PTTL', KEYS[1])
  if fresh or left < keep / 2 then
    for i = 1, 3 do redis.call('PEXPIRE', KEYS[i], math.max(keep, left)) end
  end
end

-- A record is {session, owner, weight, token, since in us, label}.
local function get(id)
  local r = redis.call('HGET', KEYS[2], 'c' .. id)
  return r and {string.match(r, SIX)}
end

local function put(id, r) return redis.call('HSET', KEYS[2], 'c' .. id, table.concat(r, US)) end -- 1: it was not there

-- own is the heaviest granted weight of an owner and the largest of its tokens.
local function own(owner, id)
  if owner == id then return 0, '0', false end
  local weight, token, list = 0, '0', redis.call('HGET', KEYS[2], 'o' .. owner)
  for c in string.gmatch(list or '', '[^\31]+') do
    local r = get(c)
    if r then weight = math.max(weight, r[3]) end
    if r and tonumber(r[4]) > tonumber(token) then token = r[4] end
  end
  return weight, token, list
end

local function hold(id, r)
  if r[2] == id then
    used = used + r[3]
    return put(id, r)
  end
  local before, _, list = own(r[2], id)
  used = used + math.max(0, r[3] - before)
  redis.call('HSET', KEYS[2], 'o' .. r[2], list and list .. US .. id or id)
  put(id, r)
end

-- drop removes a claim, granted or waiting.
local function drop(id, r)
  n = n - 1
  if r[4] == '0' then
    redis.call('ZREM', KEYS[3], id)
    redis.call('HDEL', KEYS[2], 'c' .. id)
  elseif r[2] == id then
    used = used - r[3]
    redis.call('HDEL', KEYS[2], 'c' .. id)
  else
    local before, _, list = own(r[2], id)
    local rest = {}
    for c in string.gmatch(list, '[^\31]+') do
      if c ~= id then rest[#rest + 1] = c end
    end
    redis.call('HDEL', KEYS[2], 'c' .. id, 'o' .. r[2])
    if #rest > 0 then redis.call('HSET', KEYS[2], 'o' .. r[2], table.concat(rest, US)) end
    used = used - before + own(r[2], id)
  end
end

-- bury removes the claims of an owner whose sessions have ended: nobody shares
-- the grant of the dead.
local function bury(owner)
  local list = redis.call('HGET', KEYS[2], 'o' .. owner)
  for c in string.gmatch(list or '', '[^\31]+') do
    local r = get(c)
    if r and ends_at(r[1]) == 0 then drop(c, r) end
  end
end

-- shared is how an owner is stored that is not the id of its claim. Such an owner may be the id
-- of another claim, and that claim then shares its grant.
local function shared(owner)
  local r = get(owner)
  if r and r[2] == owner then
    r[2] = '+' .. owner
    put(owner, r)
    if r[4] ~= '0' then redis.call('HSET', KEYS[2], 'o' .. r[2], owner) end
  end
  return '+' .. owner
end

-- thin reads a head that is a claim: its id, kind and record. The last field of a claim that
-- was handed on is the time since when the claim was there.
local function thin(head)
  local id, kind, session, owner, weight, rest = string.match(head, SIX, 2)
  local label, s, us, since = string.match(rest, '^([^\31]*)\31(%d+)\31(%d+)\31?(%d*)$')
  local token = string.format('%.0f', s * 1000000 + us)
  return id, kind, {session, owner == id and id or '+' .. owner, weight, token, since ~= '' and since or token, label}
end

-- behind reads the claims that wait behind a head that is a claim, in order: ids and records.
local function behind(head)
  local waiting, i = string.sub(head, 1, 1) == 'W' and redis.call('ZRANGE', KEYS[3], 0, -1, 'WITHSCORES') or {}, -1
  return function()
    i = i + 2
    if not waiting[i] then return end
    local id, _, session, owner, weight, label = string.match(waiting[i], SIX)
    return id, {session, owner, weight, '0', string.format('%.0f', waiting[i + 1]), label}
  end
end

local function session_of(record) return string.match(record, '^[^\31]*\31[^\31]*\31([^\31]*)') end

-- load reads the resource and makes it F. Keys that are left of an earlier life of the name
-- are removed.
local function load(head)
  if string.sub(head, 1, 1) == 'F' then
    was = head
    kind, used, last, seq, n, cursor = string.match(head, '^F([^\31]*)\31(%d+)\31(%d+)\31(%d+)\31(%d+)\31(%d+)$')
    used, last, seq, n = tonumber(used), tonumber(last), tonumber(seq), tonumber(n)
  else
    local id, r
    id, kind, r = thin(head)
    used, last, seq, n, cursor, fresh = 0, tonumber(r[4]), 0, 1, '0', true
    local next_waiting = behind(head)
    redis.call('DEL', KEYS[2], KEYS[3])
    hold(id, r)
    for w, record in next_waiting do
      n, seq = n + put(w, record), seq + 1
      redis.call('ZADD', KEYS[3], seq, w)
    end
  end
  cap = tonumber(string.match(kind, ':(%d+)'))
end

local function save()
  if n == 0 then return redis.call('DEL', KEYS[1], KEYS[2], KEYS[3]) end
  local head = 'F' .. kind .. US .. used .. US .. string.format('%.0f', last) .. US .. seq .. US .. n .. US .. cursor
  -- Other keys were changed by deleting first, and then a full server refuses nothing.
  if head ~= was then redis.call('SET', KEYS[1], head, 'KEEPTTL') end
  touch()
end

-- try grants a claim if it fits beside the granted claims. A claim that weighs more than
-- a semaphore that was made smaller fits alone. Nothing new is given out before the
-- end of the grace.
local function try(id, r)
  if r[2] ~= id then bury(r[2]) end
  local weight, token = own(r[2], id)
  if weight >= tonumber(r[3]) then
    r[4] = token
  elseif used - weight + math.min(tonumber(r[3]), cap) <= cap and grace_end() == 0 then
    last = math.max(last + 1, us)
    r[4] = string.format('%.0f', last)
  else
    return false
  end
  return true
end

local function barging() return string.sub(kind, -1) == 'b' end

-- send tells a session something. After a colon stands the name that the session has here.
local function send(session, message) redis.call('PUBLISH', '--INBOX--' .. string.match(session, '^[^:]*'), message) end

-- advance hands the resource to the waiting claims, in order, and passes over the
-- dead. Of a barging resource the first claim is told instead.
local function advance(asking)
  while true do
    local pop = used == 0 and not barging() and grace_end() == 0 -- then the first that lives gets it
    local first = (pop and redis.call('ZPOPMIN', KEYS[3]) or redis.call('ZRANGE', KEYS[3], 0, 0))[1]
    if not first then return end
    local r = get(first)
    if not r then
      redis.call('ZREM', KEYS[3], first) -- somebody deleted the claims
    elseif ends_at(r[1]) == 0 then
      drop(first, r)
    elseif barging() then
      local before = last
      if first ~= asking and try(first, r) then send(r[1], 'f' .. US .. first) end
      last = before
      return
    elseif try(first, r) then
      if not pop then redis.call('ZREM', KEYS[3], first) end
      hold(first, r)
      send(r[1], 'g' .. US .. first .. US .. r[4])
      if tonumber(r[3]) >= cap and r[2] == first then return end -- nothing can fit beside it
    else
      -- A grace may have begun without the knowledge of the claim, which has to look at its end.
      if grace and grace > 0 and first ~= asking then send(r[1], 'f' .. US .. first) end
      return
    end
  end
end

-- reap removes the claims of dead sessions and returns when the first session
-- that holds ends. reap looks at every claim, so only the next claim in line asks. reap also
-- counts the claims anew, because somebody may have deleted keys. Where there are many, a claim
-- that only tries looks at some, and the next such claim looks at others.
local MANY = 64
local function reap(some)
  some = some and n > MANY
  local all, soonest, weights, waits = nil, 0, {}, {}
  if some then
    local page = redis.call('HSCAN', KEYS[2], cursor, 'COUNT', MANY)
    cursor, all = page[1], page[2]
  else
    all = redis.call('HGETALL', KEYS[2])
  end
  local count = 0
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, 1) == 'c' then
      local id, r = string.sub(all[i], 2), {string.match(all[i + 1], SIX)}
      local at = ends_at(r[1])
      if at == 0 then
        if redis.call('HEXISTS', KEYS[2], all[i]) == 1 then drop(id, r) end -- a page may name it twice
      else
        count = count + 1
        if r[4] == '0' then
          waits[#waits + 1] = {id, tonumber(r[5])}
        else
          weights[r[2]] = math.max(weights[r[2]] or 0, tonumber(r[3]))
          if soonest == 0 or at < soonest then soonest = at end
        end
      end
    end
  end
  if some then return 0 end
  n, used = count, 0
  for _, weight in pairs(weights) do used = used + weight end
  if redis.call('ZCARD', KEYS[3]) < #waits then
    table.sort(waits, function(a, b) return a[2] < b[2] end)
    for _, w in ipairs(waits) do
      seq, fresh = seq + 1, true
      redis.call('ZADD', KEYS[3], seq, w[1])
    end
  end
  return soonest
end

-- look is the slow path of a claim that waits: it returns its record and after
-- how many ms it should look again.
local function look(id)
  advance(id)
  local r = get(id)
  if not r or r[4] ~= '0' then return r, 0 end
  local first, at = redis.call('ZRANGE', KEYS[3], 0, 0)[1], 0
  if first == id or not redis.call('ZSCORE', KEYS[3], id) then
    at = reap()
    advance(id)
    r = get(id)
  else
    at = ends_at(get(first)[1])
  end
  if r and r[4] == '0' and barging() and grace_end() == 0 and try(id, r) then -- a look tells no grace
    redis.call('ZREM', KEYS[3], id)
    hold(id, r)
    advance(id)
  end
  if grace_end() > 0 and (at == 0 or grace_end() < at) then at = grace_end() end
  return r, math.max(at - now, 0)
end

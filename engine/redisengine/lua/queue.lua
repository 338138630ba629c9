-- The weighted claim queue of one resource, as package queue defines it.
--
-- KEYS: 1 head, 2 claims, 3 waiting, 4 sessions, 5 grace. The head says in which
-- of four forms the resource is:
--   T  one claim holds and nobody waits: the head is that claim;
--   X  so does one that excludes all others, first come first served;
--   W  as X, and others of its kind wait: a sorted set of them in order of arrival;
--   F  everything else: counters in the head, the claims in a hash (field 'c' ..
--      id: the record; field 'o' .. owner: the granted claims of an owner that
--      is not a claim id), the ids of those that wait in the sorted set.
-- T, X and W need no more than the lines at the top of the scripts; whatever
-- does not fit in there becomes F and stays so until nobody is left. Sessions are
-- scored by when they end, in ms; while the key of the grace lives, nothing new
-- is given out.
--
-- The keys of a name expire together, and a step moves that on or leaves it as it
-- is: what whoever enters or looks needs, nobody else takes away.
local US = '\31'
local kind, cap, used, last, seq, n
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
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
    local ms = redis.call('PTTL', KEYS[5])
    grace = ms > 0 and now + ms or 0
  end
  return grace
end

-- touch keeps the keys from expiring. Fresh: some may be new, and do not expire yet.
local fresh = false
local function touch()
  local left = redis.call('PTTL', KEYS[1])
  if fresh or left < keep / 2 then
    for i = 1, 3 do redis.call('PEXPIRE', KEYS[i], math.max(keep, left)) end
  end
end

-- A record is {session, owner, weight, token, since, label}.
local function get(id)
  local r = redis.call('HGET', KEYS[2], 'c' .. id)
  return r and {string.match(r, SIX)}
end

local function put(id, r) return redis.call('HSET', KEYS[2], 'c' .. id, table.concat(r, US)) end -- 1: it was not there

-- own is the heaviest granted weight of an owner and its token.
local function own(owner, id)
  if owner == id then return 0, '0', false end
  local weight, token, list = 0, '0', redis.call('HGET', KEYS[2], 'o' .. owner)
  for c in string.gmatch(list or '', '[^\31]+') do
    local r = get(c)
    if tonumber(r[3]) > weight then weight, token = tonumber(r[3]), r[4] end
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
    if ends_at(r[1]) == 0 then drop(c, r) end
  end
end

-- since is a time in whole ms, cut as now is, so that it is not after that.
local function since(us) return string.format('%.0f', math.floor(us / 1000)) end

-- thin reads a head that is a claim: its id, kind and record.
local function thin(head)
  local id, kind, session, owner, weight, rest = string.match(head, SIX, 2)
  local label, s, us = string.match(rest, '^(.*)\31(%d+)\31(%d+)$')
  return id, kind, {session, owner, weight, string.format('%.0f', s * 1000000 + us), since(s * 1000000 + us), label}
end

-- behind reads who waits for a head that is a claim, in order: ids and records.
local function behind(head)
  local waiting, i = string.sub(head, 1, 1) == 'W' and redis.call('ZRANGE', KEYS[3], 0, -1, 'WITHSCORES') or {}, -1
  return function()
    i = i + 2
    if not waiting[i] then return end
    local id, _, session, owner, weight, label = string.match(waiting[i], SIX)
    return id, {session, owner, weight, '0', since(waiting[i + 1]), label}
  end
end

local function session_of(record) return string.match(record, '^[^\31]*\31[^\31]*\31([^\31]*)') end

-- load reads the resource and makes it F. What is left of an earlier life of the
-- name goes.
local function load(head)
  if string.sub(head, 1, 1) == 'F' then
    kind, used, last, seq, n = string.match(head, '^F([^\31]*)\31(%d+)\31(%d+)\31(%d+)\31(%d+)$')
    used, last, seq, n = tonumber(used), tonumber(last), tonumber(seq), tonumber(n)
  else
    local id, r
    id, kind, r = thin(head)
    used, last, seq, n, fresh = 0, tonumber(r[4]), 0, 1, true
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
  redis.call('SET', KEYS[1], 'F' .. kind .. US .. used .. US .. string.format('%.0f', last) .. US .. seq .. US .. n, 'KEEPTTL')
  touch()
end

-- try grants a claim if it fits beside the granted ones; one that weighs more than
-- a semaphore that was made smaller fits alone. Nothing new is given out before the
-- end of the grace.
local function try(id, r)
  if r[2] ~= id then bury(r[2]) end
  local weight, token = own(r[2], id)
  if weight >= tonumber(r[3]) then
    r[4] = token
  elseif used - weight + math.min(tonumber(r[3]), cap) <= cap and grace_end() == 0 then
    last = math.max(last + 1, t[1] * 1000000 + t[2])
    r[4] = string.format('%.0f', last)
  else
    return false
  end
  return true
end

local function barging() return string.sub(kind, -1) == 'b' end

-- send tells a session something. What follows a colon is what it is called here.
local function send(session, message) redis.call('PUBLISH', '--INBOX--' .. string.match(session, '^[^:]*'), message) end

-- advance hands the resource to those who wait, in order, and passes over the
-- dead. Of a barging resource the first one is told instead.
local function advance(asking)
  while true do
    local pop = used == 0 and not barging() and grace_end() == 0 -- then the first that lives gets it
    local first = (pop and redis.call('ZPOPMIN', KEYS[3]) or redis.call('ZRANGE', KEYS[3], 0, 0))[1]
    if not first then return end
    local r = get(first)
    if ends_at(r[1]) == 0 then
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
      return
    end
  end
end

-- reap removes the claims of dead sessions and returns when the first session
-- that holds ends. It looks at every claim, so only who is next in line asks.
local function reap()
  local all, soonest = redis.call('HGETALL', KEYS[2]), 0
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, 1) == 'c' then
      local r = {string.match(all[i + 1], SIX)}
      local at = ends_at(r[1])
      if at == 0 then
        drop(string.sub(all[i], 2), r)
      elseif r[4] ~= '0' and (soonest == 0 or at < soonest) then
        soonest = at
      end
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
  if first == id then
    at = reap()
    advance(id)
    r = get(id)
  else
    at = ends_at(get(first)[1])
  end
  if r and r[4] == '0' and barging() and try(id, r) then
    redis.call('ZREM', KEYS[3], id)
    hold(id, r)
    advance(id)
  end
  if grace_end() > 0 and (at == 0 or grace_end() < at) then at = grace_end() end
  return r, math.max(at - now, 0)
end

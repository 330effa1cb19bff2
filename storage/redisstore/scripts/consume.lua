-- Counts a request if it fits: core.Store.Consume, in the slot of its user.
--
-- KEYS  1 counters of the user and its keys, a hash: u and the Seq of each key
--       2 history of the user, a list     3 history of the key
--       4 request ids of the key, a hash  5 those before them; only with an id
-- ARGV  1 the request, packed  2 Seq of the key  3 the entry for the histories, as allowed
--       4 digest of the request id  5 terms, for the answer to a repeat  6 the request id,
--         as earlier versions have stored it; only with an id
--
-- Returns what became of it, the usage and the day on which its window begins, packed: one
-- string costs less than a list.
--   0 denied  1 allowed  2 counted before, with its terms  3 the key or the user is not here
--
-- Every decision runs this: it makes no table, and no function, which takes what it uses with
-- it. Of a counter it takes apart only what may change.

local flags, period, limit, cost, day, week, month, year, cap = struct.unpack('>I1I1I7I4I3I3I3I3I4', ARGV[1])
local shared, again = flags % 2 >= 1, flags % 4 >= 2
local entry = ARGV[3]
local _, sec, nsec, ends = struct.unpack(HEAD, entry)

local VERDICT = '>I1I7I3'

local held = redis.call('HMGET', KEYS[1], 'u', ARGV[2], 'a')
local user, key, all = held[1], held[2], held[3]
if not user or not key or string.byte(key, 64) == 1 then return struct.pack(VERDICT, 3, 0, 0) end

-- A request that was counted before gets the first answer.
local ANSWER = '>I5I4I7I3' -- when it was, what was used, the window
if ARGV[4] then
	local answer = redis.call('HGET', KEYS[4], ARGV[4]) or redis.call('HGET', KEYS[5], ARGV[4])
		or redis.call('HGET', KEYS[4], ARGV[6]) or redis.call('HGET', KEYS[5], ARGV[6])
	if answer then
		local asec, ansec, used, start, rest = struct.unpack(ANSWER, answer)
		asec = asec + 86400
		if sec < asec or sec == asec and nsec < ansec then
			if again then redis.call('HSET', KEYS[1], ARGV[2], key) end -- so that this connection can wait for its replicas
			return struct.pack(VERDICT, 2, used, start) .. string.sub(answer, rest)
		end
	end
end

-- The usage in the period, of the counter that decides.
local decides = shared and user or key
local start, used = struct.unpack('>I3', decides, 3 * period - 2), 0
local now = select(period, day, week, month, year)
if start >= now then -- a clock that steps back stays in the later window
	used = struct.unpack('>I7', decides, 7 * period + 6)
else
	start = now
end

if cost == 0 then return struct.pack(VERDICT, used < limit and 1 or 0, used, start) end

local allowed = used < limit and cost <= limit - used
local lsec, _, omitted, dsec, denials, began = struct.unpack(LAST, key, last_at)
local before = math.max(lsec, dsec)
if allowed then
	used = used + cost
	for i = 1, shared and 2 or 1 do -- the counter of the key, and that of the user
		local counter = i == 1 and key or user
		local d, w, m, y, ud, uw, um, uy, csec, cnsec = struct.unpack(USE, counter)
		if day > d then
			addDay(struct.pack(TALLY, d, ud), 0, day, i == 1 and ARGV[2] or 'u', i == 1 and ALLOWED or SHARED_ALLOWED)
			d, ud = day, 0
		end
		if week > w then w, uw = week, 0 end
		if month > m then m, um = month, 0 end
		if year > y then y, uy = year, 0 end
		if sec > csec or sec == csec and nsec > cnsec then csec, cnsec = sec, nsec end
		local min = math.min
		counter = struct.pack(USE, d, w, m, y, min(ud + cost, MOST), min(uw + cost, MOST), min(um + cost, MOST), min(uy + cost, MOST),
			csec, cnsec) .. string.sub(counter, denials_at)
		if i == 1 then key = counter else user = counter end
	end
	all = addDay(all, cost, day, 'u', ALLOWED)
else
	local field = 'd' .. ARGV[2]
	local tallies = redis.call('HMGET', KEYS[1], field, 'd', 's')
	if dsec ~= sec then dsec, denials = sec, 0 end
	local tally, recorded = tallies[1], 0
	if tally and #tally > recorded_at and day <= struct.unpack('>I3', tally) then recorded = struct.unpack(RECORDED, tally, recorded_at) end
	local omit = denials >= 10 or recorded >= 10000
	if omit then
		omitted = math.min(omitted + 1, 4294967295)
	else
		denials, recorded = denials + 1, recorded + 1
	end
	key = string.sub(key, 1, denials_at - 1) .. struct.pack(DENIALS, omitted, dsec, denials) .. string.sub(key, began_at)
	local ofKey = addDay(tally, cost, day, ARGV[2], DENIED) .. struct.pack(RECORDED, recorded)
	local ofUser = addDay(tallies[2], cost, day, 'u', DENIED)
	if shared then
		redis.call('HSET', KEYS[1], ARGV[2], key, field, ofKey, 'd', ofUser, 's', addDay(tallies[3], cost, day, 'u', SHARED_DENIED))
	else
		redis.call('HSET', KEYS[1], ARGV[2], key, field, ofKey, 'd', ofUser)
	end
	if omit then return struct.pack(VERDICT, 0, used, start) end
	entry = '\1' .. string.sub(entry, 2)
end

-- Request ids are in the hash of their day and in that of the day before, by the clock of the
-- server: those of the nodes may be wrong, and then none must be forgotten, or kept for ever.
if allowed and ARGV[4] then
	local was, now = began, tonumber(redis.call('TIME')[1])
	if was == 0 or now >= was + 86400 or was > now + 86400 then
		if was > 0 and redis.call('EXISTS', KEYS[4]) == 1 then
			redis.call('UNLINK', KEYS[5])
			redis.call('RENAME', KEYS[4], KEYS[5])
		end
		began = now
		key = string.sub(key, 1, began_at - 1) .. struct.pack('>I4', began) .. string.sub(key, began_at + 4)
	end
	redis.call('HSET', KEYS[4], ARGV[4], struct.pack(ANSWER, sec, nsec, used, start) .. ARGV[5])
	if began ~= was or redis.call('HLEN', KEYS[4]) == 1 then redis.call('PEXPIRE', KEYS[4], 49 * 3600000) end
end

-- The counters are stored, that of the user with what is its latest entry, and both histories
-- get the entry.
local usec, unsec = struct.unpack(LATEST, user, latest_at)
if sec > usec or sec == usec and nsec > unsec then
	user = string.sub(user, 1, latest_at - 1) .. string.sub(entry, 2, 10) .. string.sub(user, latest_at + 9)
end
redis.call('HSET', KEYS[1], 'u', user, ARGV[2], key, 'a', all or struct.pack(TALLY, 0, 0))
append(KEYS[2], entry, sec, nsec, usec, unsec, usec, ends, cap, 'l')
append(KEYS[3], entry, sec, nsec, usec, unsec, before, ends, cap, 'l' .. ARGV[2])
return struct.pack(VERDICT, allowed and 1 or 0, used, start)

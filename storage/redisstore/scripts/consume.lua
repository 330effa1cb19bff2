-- Decides on a request and counts it if it fits: core.Store.Consume.
--
-- Reads:  the counters of the user and the key, the key's request ids, the time of the server
-- Writes: allowed or denied: both counters, the day fields, past days at the first request of a day
--         allowed: the request id
--         allowed, and denied below the bounds: both histories with their lateness and size fields
--         a cost of 0, a repeated request: nothing
--
-- KEYS  1 hash of counters: u (user) and the Seq of each key
--       2 history of the user, a list     3 history of the key
--       4 request ids of the key, a hash  5 request ids of the day before; only with a request id
-- ARGV  1 the request, packed  2 Seq of the key  3 the entry for the histories, marked as allowed
--       4 digest of the request id  5 terms for the reply to a repeat  6 the request id as plain text,
--         which earlier versions stored; only with a request id
--
-- Returns REPLY: outcome, usage, day on which the window starts. One string costs less than an array.
--   0 denied  1 allowed  2 repeated, followed by its terms  3 a counter is missing or about to move
--
-- The script creates no tables and no closures, and decodes only the fields that may change, because each
-- decision pays for them.

local flags, period, limit, cost, day, week, month, year, cap = struct.unpack('>I1I1I7I4I3I3I3I3I4', ARGV[1])
local shared, waits = flags % 2 >= 1, flags % 4 >= 2
local entry = ARGV[3]
local _, sec, nsec, ends = struct.unpack(HEAD, entry)

local REPLY = '>I1I7I3'

local fields = redis.call('HMGET', KEYS[1], 'u', ARGV[2], 'a')
local user, key, userDay = fields[1], fields[2], fields[3]
if not user or not key or string.byte(key, 64) == 1 then return struct.pack(REPLY, 3, 0, 0) end

-- A repeated request gets its first answer.
local ANSWER = '>I5I4I7I3' -- time, usage, window
if ARGV[4] then
	local answer = redis.call('HGET', KEYS[4], ARGV[4]) or redis.call('HGET', KEYS[5], ARGV[4])
		or redis.call('HGET', KEYS[4], ARGV[6]) or redis.call('HGET', KEYS[5], ARGV[6])
	if answer then
		local asec, ansec, used, start, rest = struct.unpack(ANSWER, answer)
		asec = asec + 86400
		if sec < asec or sec == asec and nsec < ansec then
			-- A write, so that WAIT on this connection covers the first one
			if waits then redis.call('HSET', KEYS[1], ARGV[2], key) end
			return struct.pack(REPLY, 2, used, start) .. string.sub(answer, rest)
		end
	end
end

-- The usage in the period, from the deciding counter.
local decides = shared and user or key
local start, used = struct.unpack('>I3', decides, 3 * period - 2), 0
local now = select(period, day, week, month, year)
if start >= now then -- the clock has stepped back: stay in the later window
	used = struct.unpack('>I7', decides, 7 * period + 6)
else
	start = now
end

if cost == 0 then return struct.pack(REPLY, used < limit and 1 or 0, used, start) end

local allowed = used < limit and cost <= limit - used
local lsec, _, omitted, dsec, denials, began = struct.unpack(LAST, key, last_at)
local before = math.max(lsec, dsec)
if allowed then
	used = used + cost
	for i = 1, shared and 2 or 1 do -- the counter of the key, then that of the user
		local counter = i == 1 and key or user
		local d, w, m, y, ud, uw, um, uy, csec, cnsec = struct.unpack(USE, counter)
		if day > d then
			addDay(struct.pack(DAY_COUNT, d, ud), 0, day, i == 1 and ARGV[2] or 'u', i == 1 and ALLOWED or SHARED_ALLOWED)
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
	userDay = addDay(userDay, cost, day, 'u', ALLOWED)
else
	local field = 'd' .. ARGV[2]
	local days = redis.call('HMGET', KEYS[1], field, 'd', 's')
	if dsec ~= sec then dsec, denials = sec, 0 end
	local ofDay, recorded = days[1], 0
	if ofDay and #ofDay > recorded_at and day <= struct.unpack('>I3', ofDay) then recorded = struct.unpack(RECORDED, ofDay, recorded_at) end
	local omit = denials >= 10 or recorded >= 10000
	if omit then
		omitted = math.min(omitted + 1, 4294967295)
	else
		denials, recorded = denials + 1, recorded + 1
	end
	key = string.sub(key, 1, denials_at - 1) .. struct.pack(DENIALS, omitted, dsec, denials) .. string.sub(key, began_at)
	local ofKey = addDay(ofDay, cost, day, ARGV[2], DENIED) .. struct.pack(RECORDED, recorded)
	local ofUser = addDay(days[2], cost, day, 'u', DENIED)
	if shared then
		redis.call('HSET', KEYS[1], ARGV[2], key, field, ofKey, 'd', ofUser, 's', addDay(days[3], cost, day, 'u', SHARED_DENIED))
	else
		redis.call('HSET', KEYS[1], ARGV[2], key, field, ofKey, 'd', ofUser)
	end
	if omit then return struct.pack(REPLY, 0, used, start) end
	entry = '\1' .. string.sub(entry, 2)
end

-- Request ids are in the hash of their day or the day before, by the clock of the server. The clock of a
-- node may be wrong, and would expire ids too early or never.
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

-- Write the counters, and append the entry to both histories.
local usec, unsec = struct.unpack(LATEST, user, latest_at)
if sec > usec or sec == usec and nsec > unsec then
	user = string.sub(user, 1, latest_at - 1) .. string.sub(entry, 2, 10) .. string.sub(user, latest_at + 9)
end
redis.call('HSET', KEYS[1], 'u', user, ARGV[2], key, 'a', userDay or struct.pack(DAY_COUNT, 0, 0))
append(KEYS[2], entry, sec, nsec, usec, unsec, usec, ends, cap, 'l')
append(KEYS[3], entry, sec, nsec, usec, unsec, before, ends, cap, 'l' .. ARGV[2])
return struct.pack(REPLY, allowed and 1 or 0, used, start)

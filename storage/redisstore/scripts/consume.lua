-- Counts a request if it fits: core.Store.Consume, in the slot of its user.
--
-- KEYS  1 counters of the user and its keys, a hash: u and the Seq of each key
--       2 history of the user, a list     3 history of the key
--       4 request ids of the key, a hash  5 those before them; only with an id
-- ARGV  1 the request, packed  2 Seq of the key  3 the entry for the histories
--       4 request id  5 terms, for whoever asks again; only with an id
--
-- Returns what became of it, the usage and the day on which its window begins:
--   -1 the key or the user is not here  0 denied  1 allowed  2 counted before, with its terms

local flags, period, limit, cost, day, week, month, year, sec, nsec, ends, cap =
	struct.unpack('>I1I1I7I4I3I3I3I3I5I4I4I4', ARGV[1])
local shared, again = flags % 2 >= 1, flags % 4 >= 2
local starts = {day, week, month, year}

local MOST = 9007199254740991 -- 2^53 - 1: what a number here can hold

local held = redis.call('HMGET', KEYS[1], 'u', ARGV[2])
if not held[1] or not held[2] then return {-1} end
local key = {struct.unpack(COUNTER, held[2])}
if key[16] == 1 then return {-1} end
local before = math.max(key[9], key[12])

-- finish stores the counters, that of the user up to where its latest entry stands, and
-- appends the entry to both histories.
local function finish(user, denied)
	local usec, unsec = struct.unpack(LATEST, held[1], latest_at)
	if sec > usec or sec == usec and nsec > unsec then
		user = user .. struct.pack(LATEST, sec, nsec) .. string.sub(held[1], latest_at + 9)
	else
		user = user .. string.sub(held[1], latest_at)
	end
	redis.call('HSET', KEYS[1], 'u', user, ARGV[2], struct.pack(COUNTER, unpack(key, 1, 16)))
	local entry = struct.pack(HEAD, denied, sec, nsec, ends) .. ARGV[3]
	append(KEYS[2], entry, sec, nsec, usec, unsec, usec, ends, cap, 'l')
	append(KEYS[3], entry, sec, nsec, usec, unsec, before, ends, cap, 'l' .. ARGV[2])
end

-- A request that was counted before gets the first answer.
local ANSWER = '>I5I4I7I3' -- when it was, what was used, the window
if ARGV[4] then
	local answer = redis.call('HGET', KEYS[4], ARGV[4]) or redis.call('HGET', KEYS[5], ARGV[4])
	if answer then
		local asec, ansec, used, start, rest = struct.unpack(ANSWER, answer)
		asec = asec + 86400
		if sec < asec or sec == asec and nsec < ansec then
			if again then redis.call('HSET', KEYS[1], ARGV[2], held[2]) end -- so that this connection can wait for its replicas
			return {2, used, start, string.sub(answer, rest)}
		end
	end
end

-- The usage in the period, of the counter that decides.
local decides = key
if shared then decides = {struct.unpack(COUNTER, held[1])} end
local start, used = starts[period], 0
if decides[period] >= start then
	start, used = decides[period], decides[period + 4] -- a clock that steps back stays in the later window
end

if cost == 0 then return {used < limit and 1 or 0, used, start} end

if used >= limit or cost > limit - used then
	if key[12] ~= sec then key[12], key[13] = sec, 0 end
	if key[13] >= 10 then
		key[11] = math.min(key[11] + 1, 4294967295)
		redis.call('HSET', KEYS[1], ARGV[2], struct.pack(COUNTER, unpack(key, 1, 16)))
	else
		key[13] = key[13] + 1
		finish(string.sub(held[1], 1, latest_at - 1), 1)
	end
	return {0, used, start}
end

local function add(counter)
	for p = 1, 4 do
		if starts[p] > counter[p] then counter[p], counter[p + 4] = starts[p], 0 end
		counter[p + 4] = math.min(counter[p + 4] + cost, MOST)
	end
	if sec > counter[9] or sec == counter[9] and nsec > counter[10] then
		counter[9], counter[10] = sec, nsec
	end
end

add(key)
local user
if shared then
	add(decides)
	user = string.sub(struct.pack(COUNTER, unpack(decides, 1, 16)), 1, latest_at - 1)
else
	user = string.sub(held[1], 1, latest_at - 1)
end
used = used + cost

-- Request ids are in the hash of their day and in that of the day before, by the clock of the
-- server: those of the nodes may be wrong, and then none must be forgotten, or kept for ever.
if ARGV[4] then
	local began, now = key[14], tonumber(redis.call('TIME')[1])
	if began == 0 or now >= began + 86400 or began > now + 86400 then
		if began > 0 and redis.call('EXISTS', KEYS[4]) == 1 then
			redis.call('UNLINK', KEYS[5])
			redis.call('RENAME', KEYS[4], KEYS[5])
		end
		key[14] = now
	end
	redis.call('HSET', KEYS[4], ARGV[4], struct.pack(ANSWER, sec, nsec, used, start) .. ARGV[5])
	if key[14] ~= began or redis.call('HLEN', KEYS[4]) == 1 then redis.call('PEXPIRE', KEYS[4], 49 * 3600000) end
end
finish(user, 0)
return {1, used, start}

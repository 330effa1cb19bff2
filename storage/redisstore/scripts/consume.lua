-- Decides on a request and counts it if it fits: core.Store.Consume.
--
-- Reads:  the counters of the user and the key, their open holds, the bucket, the key's request ids, hours, the time of the server
-- Writes: allowed or denied: both counters, the day fields, past days at the first request of a day, hours at the first request of an hour
--         allowed: the request id, the other meters, the bucket
--         a cost other than 1, a cost on another meter, an adjustment: the days of meters
--         allowed, with a hold: the hold, the open holds of both counters
--         allowed, and denied below the bounds: both histories with their lateness and size fields
--         a cost of 0, a repeated request: nothing
--
-- KEYS  1 hash of counters: u (user) and the Seq of each key; r and u or a Seq: the token bucket of that counter;
--         k and a Seq: the token bucket for the own rate of a key; nu: the denials of requests without a key
--       2 history of the user, a list     3 history of the key, if there is a key
--       4 request ids of the key, a hash  5 request ids of the day before; only with a request id or a hold
--       6 the hold; only with a hold
--       then past days, days of meters and hours of the user and the key; only if the script changes days of meters. The script builds their names
--       itself
-- ARGV  1 the request, packed  2 Seq of the key, or u for a request or an adjustment without a key
--       3 the entry for the histories, marked as allowed, with the reason of a refusal, or as an adjustment
--       4 digest of the request id  5 terms for the reply to a repeat; only with a request id or a hold
--       6 the hold, see settle.lua  7 its lifetime in milliseconds; only with a hold
--
-- Returns REPLY: outcome, the second that the windows contain, the usage in the period of the primary limit, then the
-- usage of each further limit (7 bytes). If the key has limits of its own, the second that the windows of its counter contain
-- (5 bytes) and the usage of each of these limits (7 bytes) follow. With outcome 4 or 5, the milliseconds until there is a token
-- (5 bytes) follow. One string costs less than an array.
--   0 denied  1 allowed  2 repeated, followed by the stored answer  3 a counter is missing or about to move
--   4 denied because the bucket has no token  5 the same, for the own rate of the key
--   6 an open hold has expired: the random part of its id follows  7 a counter is later than the request, which takes a hold
--   8 denied because too many holds are open, for the concurrency of the plan  9 the same, for that of the key  10 no more holds may be open
--   11 several limits have no room and a counter is later than the request: which one decides is not known; the second that the windows of
--      the key contain follows (5 bytes)
--
-- Without further limits and other meters, the script creates no tables and no closures, because each
-- decision pays for them.

-- Behind these fields are the starts of the windows: of each period but the last, the lifetime. opened is the latest start.
local flags, period, limit, cost, opened, day, cap, ncosts, nlimits, nown, nlater, starts = struct.unpack('>I1I1I7I4I5I3I4I1I1I1I1', ARGV[1])
local rest = starts + 5 * (PERIODS - 1)
-- An adjustment is always allowed, costs nothing and changes the deciding counter only.
local ADJUSTMENT = 63
local shared, waits, rated, look, ownRated, holds = flags % 2 >= 1, flags % 4 >= 2, flags % 8 >= 4, flags % 16 >= 8, flags % 32 >= 16, flags >= 32
local keyless = ARGV[2] == 'u'
local passes = period >= 128 -- the primary limit denies nothing
local code = period % 128 -- of the primary limit: its period, and 8 times the number of its owner
period = code % 8
local entry = ARGV[3]
local mark, sec, nsec, ends = struct.unpack(HEAD, entry)
local hour = (sec % 86400 - sec % 3600) / 3600
local hourBegan = sec - sec % 3600
local adjusts = mark == ADJUSTMENT

local REPLY = '>I1I5I7'

-- The outcomes of a request with a hold, and the maximum number of open holds of a counter: core.MaxOpenHolds. MARK_RATE and MARK_CONCURRENCY
-- are the marks of the entry of a denial for these reasons.
local HOLD_EXPIRED, TOO_EARLY, OVER_CONCURRENCY, OVER_OWN_CONCURRENCY, TOO_MANY_HOLDS, LATER_COUNTER = 6, 7, 8, 9, 10, 11
local MAX_OPEN_HOLDS, MARK_RATE, MARK_CONCURRENCY = 1000, 2, 6
local OPEN = 30 -- as in holds.lua, which is a part of this script only for requests with a hold

local fields = redis.call('HMGET', KEYS[1], 'u', ARGV[2], 'au')
local user, key, userDay = fields[1], fields[2], fields[3]
if not user or not key or string.byte(key, form_at) % 2 == 1 then return struct.pack(REPLY, 3, 0, 0) end

-- A repeated request gets its first answer: its time, the terms, and the reply without the outcome.
local named = ARGV[4] and ARGV[4] ~= ''
if named then
	local answer = redis.call('HGET', KEYS[4], ARGV[4]) or redis.call('HGET', KEYS[5], ARGV[4])
	if answer then
		local asec, ansec, rest = struct.unpack('>I5I4', answer)
		asec = asec + 86400
		if sec < asec or sec == asec and nsec < ansec then
			-- A write, so that WAIT on this connection covers the first one
			if waits then redis.call('HSET', KEYS[1], ARGV[2], key) end
			return '\2' .. string.sub(answer, rest)
		end
	end
end

if holds then
	local latest = math.max(secondOf(key), shared and secondOf(user) or 0)
	if latest > sec then return struct.pack(REPLY, TOO_EARLY, latest, 0) end
end

-- The open holds of the key, and of the user if the key shares its counter.
local ofKey, ofUser = '', ''
if holds or string.byte(key, form_at) >= 8 or shared and string.byte(user, form_at) >= 8 then
	ofKey = redis.call('HGET', KEYS[1], 'o' .. ARGV[2]) or ''
	if shared and not keyless then ofUser = redis.call('HGET', KEYS[1], 'ou') or '' end
	local now = sec * 1000 + math.floor(nsec / 1000000)
	local first = string.sub(ofKey, 1, OPEN)
	if first == '' or ofUser ~= '' and string.sub(ofUser, 1, OPEN) < first then first = string.sub(ofUser, 1, OPEN) end
	if first ~= '' and struct.unpack('>I6', first) <= now then return struct.pack(REPLY, HOLD_EXPIRED, 0, 0) .. string.sub(first, 7) end
end

-- costs: by the name of a meter, the cost on it, 0 if it is charged later. limits: a list of the nlimits further limits of the
-- request, and then of the nown limits of the key.
local costs, limits
if ncosts > 0 or nlimits > 0 or nown > 0 or nlater > 0 then
	costs, limits = {requests = cost > 0 and cost or nil}, {}
	for i = 1, ncosts do
		local n, name
		n, name, rest = struct.unpack('>I7I1c0', ARGV[1], rest)
		costs[name] = n
	end
	for i = 1, nlater do
		local name
		name, rest = struct.unpack('>I1c0', ARGV[1], rest)
		costs[name] = costs[name] or 0
	end
	for i = 1, nlimits + nown do
		local max, p, name
		max, p, name, rest = struct.unpack('>I7I1I1c0', ARGV[1], rest)
		limits[i] = {max = max, period = p % 8, code = p % 128, passes = p >= 128, meter = name}
	end
end

-- order_at is where the numbers of all limits are, that which resets last first. settled says that they are also of the time of the counters.
local order_at, settled = rest + 1, nil
if nlimits + nown > 0 then
	settled = string.byte(ARGV[1], rest) == 1
	rest = rest + 2 + nlimits + nown
end

-- changes: the changes of the days of meters, see addMeters; nil for most requests. A denial replaces ALLOWED by DENIED.
local changes
if not look and not adjusts and (cost ~= 1 or ncosts > 0) then
	changes = {{ALLOWED, '#', cost - 1}}
	for name, c in pairs(costs or {}) do
		if name ~= 'requests' and c > 0 then changes[#changes + 1] = {ALLOWED, name, c} end
	end
end

local concurrency, ownConcurrency, asked, holdEnds, random -- asked: Unix milliseconds of the request, for its rates
if holds then
	concurrency, ownConcurrency, asked, holdEnds, random, rest = struct.unpack('>I2I2I6I6c24', ARGV[1], rest)
end

-- BUCKET: Unix milliseconds, the units that were missing at that time. See core.Bucket.
local BUCKET, TOKEN, AHEAD = '>I6I6', 60000, 300000

-- The usage is in d (day), w, m, y, mi (minute), h, l (lifetime) and t (the calendar day), in the order of the periods; also as a
-- table if the request is unusual.
--
-- Step 0 reads the counter of a key with limits of its own. Step 1 decides, and counts on the deciding counter: that of the user if
-- the key shares it, else that of the key. Step 2 counts on the counter of a key that shares the counter of its user.
local allowed, reply, at, keyAt, used, over, exceeded = true, nil, nil, nil, nil, false, 0 -- exceeded: how many limits have no room
for i = nown > 0 and 0 or 1, shared and not adjusts and not keyless and 2 or 1 do
	local isUser = shared and i == 1
	local counter, field = isUser and user or key, isUser and 'u' or ARGV[2]
	local form = string.byte(counter, form_at)
	local wide, has = form % 4 >= 2, form % 8 >= 4
	local csec, cnsec, others, _, d, w, m, y, mi, h, l, t, now = struct.unpack(wide and WIDE or NARROW, counter)
	if not wide then now = csec end
	local opens = sec > now and now < opened -- the request opens a window of a period
	local meters = nil -- the usage of each other meter, by name
	if has and (costs or adjusts or opens) then
		meters = {}
		local packed, pos = redis.call('HGET', KEYS[1], 'm' .. field) or '', 1
		while pos <= #packed do
			local name, ofMeter
			name, pos = struct.unpack('>I1c0', packed, pos)
			ofMeter = {struct.unpack(METER, packed, pos)}
			pos = table.remove(ofMeter)
			meters[name] = ofMeter
		end
	end
	local last, date, counted = now, (now - now % 86400) / 86400, t
	if opens then -- open the windows that contain the request
		local sday, sweek, smonth, syear, sminute, shour = struct.unpack('>I5I5I5I5I5I5', ARGV[1], starts)
		if now < sday then d = 0 end
		if now < sweek then w = 0 end
		if now < smonth then m = 0 end
		if now < syear then y = 0 end
		if now < sminute then mi = 0 end
		if now < shour then h = 0 end
		if has then
			for p = 1, PERIODS - 1 do
				if now < struct.unpack('>I5', ARGV[1], starts + 5 * (p - 1)) then
					for _, ofMeter in pairs(meters) do ofMeter[p] = 0 end
				end
			end
		end
	end
	if sec > now then
		if date < day then t = 0 end
		now = sec
	end
	local unusual = costs or adjusts or wide or math.max(d, w, m, y, mi, h, l, t) + cost > MOST_NARROW
	local usage = unusual and {d, w, m, y, mi, h, l, t}

	if i < 2 then
		for n = i == 0 and nlimits + 1 or 1, i == 0 and nlimits + nown or nlimits do
			local x = limits[n]
			x.used = 0
			if x.meter == 'requests' then
				x.used = usage[x.period]
			elseif meters and meters[x.meter] then
				x.used = meters[x.meter][x.period]
			end
			local c = costs[x.meter]
			x.over = not (x.passes or not c and not look or x.used < x.max and (c or 0) <= x.max - x.used)
			if x.over then exceeded = exceeded + 1 end
		end
	end
	if i == 0 then keyAt = now end
	if i == 1 then
		at, used = now, select(period, d, w, m, y, mi, h, l)
		local c = (cost > 0 or look) and cost or nil
		if costs then c = costs.requests end
		over = not (passes or not c and not look or used < limit and (c or 0) <= limit - used)
		if over then exceeded = exceeded + 1 end
		allowed = exceeded == 0
		if exceeded > 1 and not settled and not look and mark == 0 and (at > sec or (keyAt or at) > sec) then
			return struct.pack(REPLY, LATER_COUNTER, at, 0) .. struct.pack('>I5', keyAt or at)
		end
		local adds, outcome, wait, bucket, ownBucket = allowed and 1 or 0, nil, 0, nil, nil
		if adjusts then
			adds = 1
		elseif mark > 0 then
			adds = 0
		elseif allowed and holds and concurrency > 0 and #(shared and not keyless and ofUser or ofKey) / OPEN >= concurrency then
			adds, outcome = 0, OVER_CONCURRENCY
		elseif allowed and holds and ownConcurrency > 0 and #ofKey / OPEN >= ownConcurrency then
			adds, outcome = 0, OVER_OWN_CONCURRENCY
		elseif allowed and holds and #(shared and not keyless and ofUser or ofKey) / OPEN >= MAX_OPEN_HOLDS then
			return struct.pack(REPLY, TOO_MANY_HOLDS, 0, 0)
		elseif allowed and (rated or ownRated) then
			for r = rated and 1 or 2, ownRated and 2 or 1 do -- the rate of the plan, then that of the key
				local per, capacity
				per, capacity, rest = struct.unpack('>I4I6', ARGV[1], rest)
				local ms, before, taken = asked or sec * 1000 + math.floor(nsec / 1000000), 0, 0
				local stored = redis.call('HGET', KEYS[1], r == 1 and 'r' .. field or 'k' .. ARGV[2])
				if stored then before, taken = struct.unpack(BUCKET, stored) end
				taken = math.min(taken, capacity)
				local elapsed = ms - before
				if elapsed < -AHEAD or elapsed > math.floor(taken / per) then
					taken = 0
				elseif elapsed > 0 then
					taken = taken - elapsed * per
				end
				local missing = taken + TOKEN - capacity
				if missing > 0 and math.floor((missing + per - 1) / per) > wait then
					adds, outcome, wait = 0, 3 + r, math.floor((missing + per - 1) / per)
				end
				if elapsed > 0 or elapsed < -AHEAD then before = ms end
				stored = struct.pack(BUCKET, before, math.min(taken + TOKEN, capacity))
				if r == 1 then bucket = stored else ownBucket = stored end
			end
		end
		allowed = adds == 1
		used = used + adds * cost
		reply = struct.pack(REPLY, outcome or adds, at, used < MOST and used or MOST)
		for n = 1, nlimits + nown do
			if n == nlimits + 1 then reply = reply .. struct.pack('>I5', keyAt) end
			reply = reply .. struct.pack('>I7', math.min(limits[n].used + adds * (costs[limits[n].meter] or 0), MOST))
		end
		if outcome then
			reply = reply .. struct.pack('>I5', wait)
			mark = outcome < HOLD_EXPIRED and MARK_RATE or MARK_CONCURRENCY
		end
		if look then return reply end
		if not allowed then break end
		if bucket then redis.call('HSET', KEYS[1], 'r' .. field, bucket) end
		if ownBucket then redis.call('HSET', KEYS[1], 'k' .. ARGV[2], ownBucket) end
	end

	if i > 0 then
		if last < hourBegan or last >= hourBegan + 3600 then
			addDay(struct.pack(DAY_COUNT, date, counted, math.floor(last / 3600) % 24), cost, day, hour, field, isUser and SHARED_ALLOWED or ALLOWED)
		end
		if adjusts then
			local set, p, sign, n, name = struct.unpack('>I1I1i1I7I1c0', ARGV[1], rest)
			local adjusted = usage
			if name ~= 'requests' then
				meters = meters or {}
				adjusted = meters[name] or {}
				meters[name] = adjusted
			end
			local by, month = set % 2 == 0 and sign * n or n - (adjusted[p] or 0), adjusted[MONTH] or 0
			for q = 1, PERIODS do
				adjusted[q] = math.min(math.max(0, (adjusted[q] or 0) + by), MOST)
			end
			local changes = {{ADJUSTED, name, adjusted[MONTH] - month}}
			addMeters(field, math.floor(now / 86400), day, hour, isUser, changes)
			if set < 2 then addMeters('u', math.max(day, userDay and struct.unpack(DAY_COUNT, userDay) or 0), day, hour, false, changes) end
		else
			if usage then
				for p = 1, PERIODS + 1 do usage[p] = math.min(usage[p] + cost, MOST) end
			end
			if sec > csec or sec == csec and nsec > cnsec then csec, cnsec = sec, nsec end
			if changes then addMeters(field, math.floor(now / 86400), day, hour, isUser, changes) end
		end
		if ncosts > 0 then
			meters = meters or {}
			for name, c in pairs(costs) do
				if name ~= 'requests' and c > 0 then
					local ofMeter = meters[name] or {}
					for p = 1, PERIODS do ofMeter[p] = math.min((ofMeter[p] or 0) + c, MOST) end
					meters[name] = ofMeter
				end
			end
		end
		if meters then
			local packed = ''
			for name, ofMeter in pairs(meters) do
				packed = packed .. struct.pack('>I1c0', #name, name) .. struct.pack(METER, unpack(ofMeter))
			end
			redis.call('HSET', KEYS[1], 'm' .. field, packed)
		end
		form = ((has or meters) and 4 or 0) + ((holds or form >= 8) and 8 or 0)
		if not usage then
			counter = struct.pack(NARROW, csec, cnsec, others, form,
				d + cost, w + cost, m + cost, y + cost, mi + cost, h + cost, l + cost, t + cost)
		elseif now == csec and math.max(unpack(usage)) <= MOST_NARROW then
			counter = struct.pack(NARROW, csec, cnsec, others, form, unpack(usage))
		else
			usage[PERIODS + 2] = now
			counter = struct.pack(WIDE, csec, cnsec, others, form + 2, unpack(usage))
		end
		if isUser then user = counter else key = counter end
	end
end
if keyless then key = user end

local lsec, _, omitted, dsec, denials, began = struct.unpack(LAST, fields[2])
local before = math.max(lsec, dsec)
if adjusts then
	-- counts no requests
elseif allowed then
	userDay = addDay(userDay, cost, day, hour, 'u', ALLOWED)
	if changes then addMeters('u', (struct.unpack(DAY_COUNT, userDay)), day, hour, false, changes) end
elseif keyless then
	local days = redis.call('HMGET', KEYS[1], 'nu', 'du', 'su')
	local dsec, denials, dday, recorded = 0, 0, 0, 0
	if days[1] then dsec, denials, dday, recorded = struct.unpack(KEYLESS, days[1]) end
	if dsec ~= sec then dsec, denials = sec, 0 end
	if day > dday then dday, recorded = day, 0 end
	local omit = denials >= 10 or recorded >= 10000
	if omit then
		user = string.sub(user, 1, denials_at - 1) .. struct.pack('>I4', math.min(omitted + 1, 4294967295)) .. string.sub(user, denials_at + 4)
	else
		denials, recorded = denials + 1, recorded + 1
	end
	key = user
	local ofUser, ofShared = addDay(days[2], cost, day, hour, 'u', DENIED), addDay(days[3], cost, day, hour, 'u', SHARED_DENIED)
	redis.call('HSET', KEYS[1], 'u', user, 'nu', struct.pack(KEYLESS, dsec, denials, dday, recorded), 'du', ofUser, 'su', ofShared)
	if changes then
		for _, c in ipairs(changes) do c[1] = DENIED end
		addMeters('u', (struct.unpack(DAY_COUNT, ofUser)), day, hour, false, changes)
		addMeters('u', (struct.unpack(DAY_COUNT, ofShared)), day, hour, true, changes)
	end
	if omit then return reply end
else
	local field = 'd' .. ARGV[2]
	local days = redis.call('HMGET', KEYS[1], field, 'du', 'su')
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
	local ofKey = addDay(ofDay, cost, day, hour, ARGV[2], DENIED) .. struct.pack(RECORDED, recorded)
	local ofUser = addDay(days[2], cost, day, hour, 'u', DENIED)
	if changes then
		for _, c in ipairs(changes) do c[1] = DENIED end
		addMeters(ARGV[2], (struct.unpack(DAY_COUNT, ofKey)), day, hour, false, changes)
		addMeters('u', (struct.unpack(DAY_COUNT, ofUser)), day, hour, false, changes)
	end
	if shared then
		local ofShared = addDay(days[3], cost, day, hour, 'u', SHARED_DENIED)
		redis.call('HSET', KEYS[1], ARGV[2], key, field, ofKey, 'du', ofUser, 'su', ofShared)
		if changes then addMeters('u', (struct.unpack(DAY_COUNT, ofShared)), day, hour, true, changes) end
	else
		redis.call('HSET', KEYS[1], ARGV[2], key, field, ofKey, 'du', ofUser)
	end
	if omit then return reply end
end

-- The entry of a denied request has the mark of its reason. For a limit, the limit that decides is at its end: see decodeLimit.
local LIMIT = 60
if not allowed and mark > 0 then
	entry = string.char(mark) .. string.sub(entry, 2)
elseif not allowed then
	local max, name = limit, 'requests'
	for i = order_at, settled ~= nil and order_at + nlimits + nown or order_at - 1 do
		local n = string.byte(ARGV[1], i)
		if n == 0 and over then break end
		if n > 0 and limits[n].over then
			code, max, used, name = limits[n].code, limits[n].max, limits[n].used, limits[n].meter
			break
		end
	end
	local wide = math.max(max, used) >= 4294967296
	local which = struct.pack(wide and '>I1I7I7' or '>I1I4I4', wide and code + 32 or code, max, used) .. (name == 'requests' and '' or name)
	entry = string.char(LIMIT) .. string.sub(entry, 2) .. which .. string.char(#which)
end

-- Request ids are in the hash of their day or the day before, by the clock of the server. The clock of a
-- node may be wrong, and would expire ids too early or never.
if allowed and named then
	local was, now = began, tonumber(redis.call('TIME')[1])
	if not keyless and (was == 0 or now >= was + 86400 or was > now + 86400) then
		if was > 0 and redis.call('EXISTS', KEYS[4]) == 1 then
			redis.call('UNLINK', KEYS[5])
			redis.call('RENAME', KEYS[4], KEYS[5])
		end
		began = now
		key = string.sub(key, 1, began_at - 1) .. struct.pack('>I4', began) .. string.sub(key, began_at + 4)
	end
	redis.call('HSET', KEYS[4], ARGV[4], struct.pack('>I5I4', sec, nsec) .. ARGV[5] .. string.sub(reply, 2))
	if began ~= was or redis.call('HLEN', KEYS[4]) == 1 then redis.call('PEXPIRE', KEYS[4], 49 * 3600000) end
end

-- The entry of a request that opens a hold has another mark, and the random part of the id at its end.
local HOLD = 61
if allowed and holds then
	redis.call('HSET', KEYS[1], 'o' .. ARGV[2], addHold(ofKey, holdEnds, random))
	if shared and not keyless then redis.call('HSET', KEYS[1], 'ou', addHold(ofUser, holdEnds, random)) end
	redis.call('SET', KEYS[6], ARGV[6], 'PX', ARGV[7])
	entry = string.char(HOLD) .. string.sub(entry, 2) .. random
end

-- Write the counters, and append the entry to both histories.
local usec, unsec = struct.unpack(LATEST, user, latest_at)
if sec > usec or sec == usec and nsec > unsec then
	user = string.sub(user, 1, latest_at - 1) .. string.sub(entry, 2, 10) .. string.sub(user, latest_at + 9)
end
redis.call('HSET', KEYS[1], ARGV[2], key, 'u', user, 'au', userDay or struct.pack(DAY_COUNT, 0, 0, 0))
append(KEYS[2], entry, sec, nsec, usec, unsec, usec, ends, cap, 'lu')
if keyless then return reply end
append(KEYS[3], entry, sec, nsec, usec, unsec, before, ends, cap, 'l' .. ARGV[2])
return reply

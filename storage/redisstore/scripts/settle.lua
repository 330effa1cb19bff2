-- Ends an open hold: core.Store.Settle, and the end of a hold that has expired.
--
-- Reads:  the hold, the counters of the user and the key, their open holds, days and hours
-- Writes: the hold, both counters, their open holds, days and hours, both histories
--
-- KEYS  1 hash of counters  2 history of the user  3 history of the key, or again of the user
--       4 the hold: its status, 0 while it is open; Unix milliseconds of its end; what only the programs read
--       5… past days, days of meters and hours of the user and the key; the script builds their names itself
-- ARGV  1 the settlement, packed  2 Seq of the key, or u for a hold without a key
--       3 the entry for the histories  4 the hold afterwards  5 its lifetime in milliseconds  6 random part of its id
--
-- Returns an outcome, and the second of the later counter for outcome 3:
--   0 ended  1 the hold is not open  2 it has expired  3 a counter is later than the settlement
--   4 a counter is missing or about to move

-- shared: the counter of the user has counted the hold; expires: the hold ends because it has expired; waits: see consume.lua; keeps: the
-- held costs stay counted; released: the hold gives back all costs, and its request no longer counts. by is final cost minus held cost. After these
-- fields come the starts of the windows, as in consume.lua, and the difference on each other meter.
local flags, sign, by, held, day, cap, nchanges, starts = struct.unpack('>I1i1I7I5I3I4I1', ARGV[1])
local shared, expires, waits, keeps, released = flags % 2 >= 1, flags % 4 >= 2, flags % 8 >= 4, flags % 16 >= 8, flags >= 16
local keyless, entry = ARGV[2] == 'u', ARGV[3]
by = sign * by

local user, key, userDay, ofUser, ofKey = unpack(redis.call('HMGET', KEYS[1], 'u', ARGV[2], 'au', 'ou', 'o' .. ARGV[2]))
if not user or not keeps and (not key or string.byte(key, form_at) % 2 == 1) then return {4} end

local hold = redis.call('GET', KEYS[4])
local atKey, atUser = findHold(ofKey or '', ARGV[6]), findHold(ofUser or '', ARGV[6])
if not expires and (not hold or string.byte(hold) > 0) or not atKey and not atUser then
	if waits then redis.call('HSET', KEYS[1], 'u', user) end -- so that WAIT on this connection covers the first settlement
	return {hold and string.byte(hold) == 0 and 2 or 1}
end
local _, sec, nsec, ends = struct.unpack(HEAD, entry)
if not keeps and (sec < secondOf(key) or shared and sec < secondOf(user)) then
	return {3, math.max(secondOf(key), shared and secondOf(user) or 0)}
end
local over = sec * 1000 + math.floor(nsec / 1000000) >= struct.unpack('>I6', atKey and ofKey or ofUser, atKey or atUser)
if over ~= expires then return {expires and 1 or 2} end

if not keeps then
	local since, rest = {struct.unpack('>I5I5I5I5I5I5', ARGV[1], starts)}, nil
	rest = table.remove(since)
	local changes = {}
	for i = 1, nchanges do
		local s, n, name
		s, n, name, rest = struct.unpack('>i1I7I1c0', ARGV[1], rest)
		changes[name] = s * n
	end
	local holdDay, holdHour, hour = math.floor(held / 86400), math.floor(held / 3600) % 24, math.floor(sec / 3600)
	local days = {{ALLOWED, '#', by + (released and 1 or 0)}} -- the changes of the days of meters
	for name, n in pairs(changes) do days[#days + 1] = {ALLOWED, name, n} end

	-- Each counter that has counted the hold: opens its windows, and changes those that contain the time of the hold.
	for i = shared and 1 or 2, keyless and 1 or 2 do
		local isUser = i == 1
		local field, counter, number = isUser and 'u' or ARGV[2], isUser and user or key, isUser and SHARED_ALLOWED or ALLOWED
		local form = string.byte(counter, form_at)
		local wide, has = form % 4 >= 2, form % 8 >= 4
		local csec, cnsec, others, _, d, w, m, y, mi, h, l, t, now = struct.unpack(wide and WIDE or NARROW, counter)
		if not wide then now = csec end
		local meters = {requests = {d, w, m, y, mi, h, l}}
		if has then
			local packed, pos = redis.call('HGET', KEYS[1], 'm' .. field) or '', 1
			while pos <= #packed do
				local name, ofMeter
				name, pos = struct.unpack('>I1c0', packed, pos)
				ofMeter = {struct.unpack(METER, packed, pos)}
				pos = table.remove(ofMeter)
				meters[name] = ofMeter
			end
		end
		for p = 1, PERIODS - 1 do
			if now < since[p] then
				for _, ofMeter in pairs(meters) do ofMeter[p] = 0 end
			end
		end
		local date, latest = math.floor(now / 86400), math.floor(now / 3600)
		if latest < hour then addDay(struct.pack(DAY_COUNT, date, t, latest % 24), 0, day, hour % 24, field, number) end
		if date < day then t = 0 end
		now = math.max(now, sec)
		changes.requests = by
		for name, n in pairs(changes) do
			local ofMeter = meters[name] or {0, 0, 0, 0, 0, 0, 0}
			local month = ofMeter[MONTH]
			meters[name] = ofMeter
			for p = 1, PERIODS do
				if p == PERIODS or held >= since[p] then ofMeter[p] = math.min(math.max(0, ofMeter[p] + n), MOST) end
			end
			local cut = ofMeter[MONTH] - month - n
			if cut ~= 0 and held >= since[MONTH] then
				addMeters(field, holdDay, holdDay, holdHour, isUser, {{ADJUSTED, name, cut}})
				if isUser or not shared then addMeters('u', holdDay, holdDay, holdHour, false, {{ADJUSTED, name, cut}}) end -- cut off by the deciding counter
			end
		end
		addMeters(field, holdDay, holdDay, holdHour, isUser, days)
		changes.requests = nil
		if holdDay == math.floor(now / 86400) then
			local before = t
			t = math.min(math.max(0, t + by), MOST)
			changedHour(field, holdDay, number, holdHour, by, t - before, math.floor(now / 3600) % 24)
			if t == 0 then changePast(field, holdDay, number, -MOST) end -- from before an import
		else
			changePast(field, holdDay, number, by, holdHour)
		end

		local usage = meters.requests
		usage[PERIODS + 1], meters.requests = t, nil
		local packed = ''
		for name, ofMeter in pairs(meters) do
			packed = packed .. struct.pack('>I1c0', #name, name) .. struct.pack(METER, unpack(ofMeter))
		end
		if packed ~= '' then redis.call('HSET', KEYS[1], 'm' .. field, packed) end
		form = (packed ~= '' and 4 or 0) + (form >= 8 and 8 or 0)
		if now == csec and math.max(unpack(usage)) <= MOST_NARROW then
			counter = struct.pack(NARROW, csec, cnsec, others, form, unpack(usage))
		else
			usage[PERIODS + 2] = now
			counter = struct.pack(WIDE, csec, cnsec, others, form + 2, unpack(usage))
		end
		if isUser then user = counter else key = counter end
	end

	addMeters('u', holdDay, holdDay, holdHour, false, days)
	local date, n, latest = struct.unpack(DAY_COUNT, addDay(userDay, 0, holdDay, holdHour, 'u', ALLOWED)) -- an import may have removed the day of the hold
	if date == holdDay then
		local after = math.min(math.max(0, n + by), MOST)
		changedHour('u', date, ALLOWED, holdHour, by, after - n, latest)
		redis.call('HSET', KEYS[1], 'au', struct.pack(DAY_COUNT, date, after, latest))
	else
		changePast('u', holdDay, ALLOWED, by, holdHour)
	end
end
-- The hold is no longer open.
if atUser then user = unlist(user, 'u', ofUser, atUser) end
if keyless then
	key = user
elseif atKey and key then
	key = unlist(key, ARGV[2], ofKey, atKey)
end
if keeps then
	if hold then redis.call('SET', KEYS[4], '\3' .. string.sub(hold, 2), 'PX', ARGV[5]) end
	redis.call('HSET', KEYS[1], 'u', user)
	if key then redis.call('HSET', KEYS[1], ARGV[2], key) end
	return {0}
end
redis.call('SET', KEYS[4], ARGV[4], 'PX', ARGV[5])

local lsec = struct.unpack(LAST, key)
local usec, unsec = struct.unpack(LATEST, user, latest_at)
if sec > usec or sec == usec and nsec > unsec then
	user = string.sub(user, 1, latest_at - 1) .. string.sub(entry, 2, 10) .. string.sub(user, latest_at + 9)
	if keyless then key = user end
end
redis.call('HSET', KEYS[1], ARGV[2], key, 'u', user)
append(KEYS[2], entry, sec, nsec, usec, unsec, usec, ends, cap, 'lu')
if not keyless then append(KEYS[3], entry, sec, nsec, usec, unsec, lsec, ends, cap, 'l' .. ARGV[2]) end
return {0}

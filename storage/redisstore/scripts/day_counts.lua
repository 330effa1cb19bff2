-- Counts by days, for several scripts. Each number of a day has its own field in the hash of counters,
-- which holds the latest day. The numbers of past days are in one string for each key or user.
--
-- Reads:  past days and the newest day with hours, once a day; hours, once an hour
-- Writes: past days, once a day; hours, once an hour

-- DAY_COUNT: date, number, latest hour.
local DAY_COUNT = '>I3I7I1'

-- A number of a past day has a head of 4 bytes, and the value. The head has the date, 5 bits of latest hour, 2 bits of index and 3 bits of size of the
-- value in bytes.
local PAST_DAY, PAST_HOUR = 1024, 32 -- the factors of the date and of the hour in the head

-- RECORDED follows the DAY_COUNT of denials of a key: how many of these denials are in its history. An import sets none.
local RECORDED, recorded_at = '>I2', 12

-- The numbers of a day. A counter holds the allowed requests of its day: ALLOWED for a key, SHARED_ALLOWED
-- for a user.
local ALLOWED, DENIED, SHARED_ALLOWED, SHARED_DENIED = 0, 1, 2, 3

local KEPT = 400 -- days, see core.DaysKept

-- findPast returns a number of a day in past days, its latest hour, and the position and the size of its head and value; nil if the past days lack it.
local function findPast(past, day, number)
	local first, value, latest, at, size = 1, nil, nil, nil, nil
	while first <= #past do
		local head = struct.unpack('>I4', past, first)
		local bytes = head % 8
		if math.floor(head / PAST_DAY) == day and math.floor(head / 8) % 4 == number then
			value, latest, at, size = struct.unpack('>I' .. bytes, past, first + 4), math.floor(head / PAST_HOUR) % 32, first, 4 + bytes
		end
		first = first + 4 + bytes
	end
	return value, latest, at, size
end

-- addDay adds cost to a DAY_COUNT, and returns the new DAY_COUNT. The cost counts today, in the given hour. If the DAY_COUNT is of a later date, the
-- cost counts in the first hour of that date. When a new day begins, addDay appends the old one to the past days of the field, and removes the days that
-- are too old. addDay builds the key of the past days itself rather than get it in KEYS, because it needs that key only once a day. With the hour NO_HOUR,
-- addDay ends the old day and begins no other.
local function addDay(count, cost, today, hour, field, number)
	local day, n, latest = 0, 0, 0
	if count then day, n, latest = struct.unpack(DAY_COUNT, count) end
	if today > day then
		if n > 0 then
			local name = string.sub(KEYS[1], 1, -2) .. 't:' .. field
			local over, first = redis.call('GET', name) or '', 1
			while first <= #over do
				local head = struct.unpack('>I4', over, first)
				if math.floor(head / PAST_DAY) + KEPT >= today then break end
				first = first + 4 + head % 8
			end
			local size = n < 256 and 1 or n < 65536 and 2 or 7
			over = string.sub(over, first) .. struct.pack('>I4I' .. size, day * PAST_DAY + latest * PAST_HOUR + number * 8 + size, n)
			redis.call('SET', name, over, 'PX', (KEPT + 1) * 86400000)
		elseif day > 0 then
			keepHour(field, day, number, '', latest, 0)
			local past = findPast(redis.call('GET', string.sub(KEYS[1], 1, -2) .. 't:' .. field) or '', day, number)
			if past then keepHour(field, day, number, '', NO_HOUR, past) end -- of the counter before an import on this day
		end
		local newest = hour ~= NO_HOUR and redis.call('HGET', KEYS[1], 'e' .. field)
		if newest and struct.unpack('>I3', newest) >= today then keepHour(field, today, number, '', NO_HOUR, 0) end -- entries of today are from before an import
		day, n, latest = today, 0, hour
	elseif today < day then
		hour = 0
	end
	if hour > latest or latest == NO_HOUR then
		keepHour(field, day, number, '', latest, n)
		latest = hour
	elseif hour < latest and cost > 0 then
		keepHour(field, day, number, '', hour, nil, cost)
	end
	return struct.pack(DAY_COUNT, day, math.min(n + cost, MOST), latest)
end


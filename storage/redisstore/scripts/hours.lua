-- Hours of days, for several scripts. Each number of a day has its latest hour beside it: in day_counts.lua, in meter_days.lua, and for a counter in
-- its time. What a number was when earlier hours of its day ended is in the list e: and the field of a counter. So a request in the hour of the one
-- before changes no hours, and a day with traffic in one hour only needs none.
--
-- The list has the last 8 days, the newest last, each as the date in 3 bytes and its entries. An entry is the end of an hour for one number:
-- 8 * hour + number; size of the value, plus 16 if the meter is another one than requests; the length and the name of that meter; the number when the
-- hour ended. The difference to the entry before of the same number is the traffic of the hour. What a number has more than in its last entry is the
-- traffic of its latest hour. NO_HOUR as an hour leaves the difference out of all hours, after an import.
--
-- The field e and the field of a counter is the newest day that the list has had. The hours of that day and of the days before are unknown when the
-- list has expired.
--
-- Reads:  that list and that field
-- Writes: that list and that field

local MOST = 9007199254740991 -- 2^53 - 1: the largest exact integer of a Lua number
local NO_HOUR = 31

-- keepHour ends an hour of a number of a day: the number was n then. Or, with `by`, the number changes by that in an hour that is not its latest one.
local function keepHour(field, date, number, meter, hour, n, by)
	local DATE, DAYS, LIVES = '>I3', 8, 10 * 86400000 -- 168 hours are on 8 days. The list outlives them, for clocks that differ.
	local function pack(hour, value)
		value = math.min(math.max(-MOST, value), MOST)
		local bits, code = value < 0 and -1 - value or value, 8 * hour + number
		local size = bits < 128 and 1 or bits < 32768 and 2 or bits < 8388608 and 3 or bits < 2147483648 and 4 or 7
		return (meter == '' and string.char(code, size) or struct.pack('>I1I1I1c0', code, size + 16, #meter, meter)) .. struct.pack('>i' .. size, value)
	end
	local name = string.sub(KEYS[1], 1, -2) .. 'e:' .. field
	local day, at, newest = redis.call('LINDEX', name, -1), -1, -1
	if day then
		newest = struct.unpack(DATE, day)
	else
		local ended = redis.call('HGET', KEYS[1], 'e' .. field)
		if ended and struct.unpack(DATE, ended) >= date then return end
	end
	if date <= newest - DAYS then return end
	local days = nil
	if date ~= newest then day = nil end
	if date < newest then
		days, at = redis.call('LRANGE', name, 0, -1), 0
		while struct.unpack(DATE, days[at + 1]) < date do at = at + 1 end
		if struct.unpack(DATE, days[at + 1]) == date then day = days[at + 1] end
	end

	local entries = day and string.sub(day, 4) or ''
	if not by then
		if n == 0 and entries == '' then return end
		entries = entries .. pack(hour, n)
	else -- changes the entry of the hour and those behind it. A missing entry becomes the first one.
		local pieces, found = {}, false
		for pass = 1, 2 do
			local pos = 1
			pieces = {}
			while pos <= #entries do
				local first, code, size = pos, string.byte(entries, pos, pos + 1)
				local of, value = '', nil
				pos = pos + 2
				if size >= 16 then of, pos = struct.unpack('>I1c0', entries, pos) end
				value, pos = struct.unpack('>i' .. size % 16, entries, pos)
				local mine, label = code % 8 == number and of == meter, math.floor(code / 8)
				found = found or mine and label == hour
				pieces[#pieces + 1] = found and mine and pack(label, value + by) or string.sub(entries, first, pos - 1)
			end
			if found then break end
			entries = pack(hour, 0) .. entries
		end
		entries = table.concat(pieces)
	end

	entries = struct.pack(DATE, date) .. entries
	if day then
		redis.call('LSET', name, at, entries)
		return
	end
	if days then
		table.insert(days, at + 1, entries)
		redis.call('UNLINK', name)
		redis.call('RPUSH', name, unpack(days))
	else
		redis.call('HSET', KEYS[1], 'e' .. field, struct.pack(DATE, date))
		redis.call('RPUSH', name, entries)
		while struct.unpack(DATE, redis.call('LINDEX', name, 0)) <= date - DAYS do redis.call('LPOP', name) end
	end
	redis.call('PEXPIRE', name, LIVES)
end


-- The hours of the last days, for several scripts.
--
-- Each number of a day is stored with its latest hour: in a DAY_COUNT and a past day (day_counts.lua), and in a METER_DAY (meter_days.lua). The latest hour
-- of the number in a counter follows from the time of the counter. When a later hour begins, keepHour stores the value that the number has at the end of the
-- earlier hour. A second request in the same hour therefore writes no hours. A day with traffic in a single hour needs no list.
--
-- The list e:<field> has one element for each of the last 8 days, the newest last: the date in 3 bytes, and entries. An entry is the value of one number
-- at the end of one hour:
--   8 * hour + index of the number                     1 byte
--   size of the value, plus 16 if a name follows       1 byte
--   name of the meter, for other meters than requests  its length in 1 byte, and the name
--   value                                              signed
-- The traffic of an hour is the value minus the value of the previous entry of the same number. The traffic of the latest hour is the number minus the
-- value of its last entry. The difference of an entry with NO_HOUR belongs to no hour. An import writes such entries.
--
-- The field e<field> of the hash of counters has the newest day that the list has had. If the list has expired, the hours of that day and of all
-- earlier days are unknown.
--
-- Reads:  the list and the field
-- Writes: the list and the field

local MOST = 9007199254740991 -- 2^53 - 1: the largest exact integer of a Lua number
local NO_HOUR = 31

-- keepHour stores n as the value of a number at the end of an hour. With `by`, keepHour instead adds `by` to the traffic of an hour other than the latest
-- hour of the number. meter is '' for requests.
local function keepHour(field, date, number, meter, hour, n, by)
	local DATE, DAYS, LIVES = '>I3', 8, 10 * 86400000 -- 168 hours can touch 8 days. The list lives 2 days longer, because clocks differ.
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
	else -- add `by` to the entry of the hour and to all later entries of the number. A missing entry is first added in front of all others.
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


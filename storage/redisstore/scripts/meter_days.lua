-- The days of meters, for several scripts. They have the cost of requests minus their number (meter #), the costs on other meters, and the
-- adjustments. The hash of a counter has the name y: and the field of the counter. It has a field for each date with such numbers.
--
-- Reads:  this hash, and hours
-- Writes: this hash, and hours

-- METER_DAY is a number of a day: 8 * latest hour + index of the number, the meter, the value.
local METER_DAY = '>I1I1c0i8'

-- ADJUSTED follows the numbers in day_counts.lua. The index of a number of shared traffic is ALLOWED or DENIED plus SHARED, or ADJUSTED plus
-- SHARED_ADJUSTED.
local ADJUSTED, SHARED, SHARED_ADJUSTED = 4, 2, 1

-- addMeters adds changes to the numbers of a date. A change is the index of a number, a meter and a value. The changes count in the given hour if the date
-- is today, otherwise in the first hour of the date. With shared, addMeters changes the shared traffic of the user, otherwise the whole traffic.
local function addMeters(field, date, today, hour, shared, changes)
	if date ~= today then hour = 0 end
	local name, day = string.sub(KEYS[1], 1, -2) .. 'y:' .. field, string.format('%d', date)
	local packed, pos, values, codes = redis.call('HGET', name, day) or '', 1, {}, {}
	while pos <= #packed do
		local code, meter, value
		code, meter, value, pos = struct.unpack(METER_DAY, packed, pos)
		local id = string.char(code % 8) .. meter
		values[id], codes[id] = value, code
	end
	for _, c in ipairs(changes) do
		local number, meter, by = c[1] + (shared and (c[1] == ADJUSTED and SHARED_ADJUSTED or SHARED) or 0), c[2], c[3]
		if by ~= 0 then
			local id, of = string.char(number) .. meter, meter == 'requests' and '' or meter
			local n, latest = values[id], codes[id] and (codes[id] - number) / 8 or hour
			if latest < hour or latest == NO_HOUR then
				keepHour(field, date, number, of, latest, n)
				latest = hour
			elseif latest > hour then
				keepHour(field, date, number, of, hour, nil, by)
			end
			values[id], codes[id] = math.min(math.max(-MOST, (n or 0) + by), MOST), 8 * latest + number
		end
	end
	packed = ''
	for id, value in pairs(values) do -- keep a 0, because its hours may not be 0
		packed = packed .. struct.pack(METER_DAY, codes[id], #id - 1, string.sub(id, 2), value)
	end
	if packed == '' then return end
	local added = redis.call('HSET', name, day, packed) == 1
	if added and redis.call('HLEN', name) > KEPT then -- remove dates that are too old
		local all = redis.call('HGETALL', name)
		for i = 1, #all, 2 do
			if tonumber(all[i]) + KEPT < date then redis.call('HDEL', name, all[i]) end
		end
	end
	redis.call('PEXPIRE', name, (KEPT + 1) * 86400000)
end

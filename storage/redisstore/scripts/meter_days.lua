-- The days of meters, for several scripts. They have the cost of requests minus their number (meter #), the costs on other meters, and the
-- adjustments. The hash of a counter has the name y: and the field of the counter. It has a field for each date with such numbers.
--
-- Reads:  this hash
-- Writes: this hash

-- METER_DAY is a number of a day: its index, the meter, the value.
local METER_DAY = '>I1I1c0i8'

-- ADJUSTED follows the numbers in day_counts.lua. The index of a number of shared traffic is ALLOWED or DENIED plus SHARED, or ADJUSTED plus
-- SHARED_ADJUSTED.
local ADJUSTED, SHARED, SHARED_ADJUSTED = 4, 2, 1

-- addMeters adds changes to the numbers of a date. A change is the index of a number, a meter and a value. With shared, it changes the shared traffic
-- of the user, otherwise the whole traffic.
local function addMeters(field, date, shared, changes)
	local name, day = string.sub(KEYS[1], 1, -2) .. 'y:' .. field, string.format('%d', date)
	local packed, pos, values = redis.call('HGET', name, day) or '', 1, {}
	while pos <= #packed do
		local number, meter, value
		number, meter, value, pos = struct.unpack(METER_DAY, packed, pos)
		values[string.char(number) .. meter] = value
	end
	for _, c in ipairs(changes) do
		local id = string.char(c[1] + (shared and (c[1] == ADJUSTED and SHARED_ADJUSTED or SHARED) or 0)) .. c[2]
		values[id] = math.min(math.max(-MOST, (values[id] or 0) + c[3]), MOST)
	end
	packed = ''
	for id, value in pairs(values) do
		if value ~= 0 then packed = packed .. struct.pack(METER_DAY, string.byte(id), #id - 1, string.sub(id, 2), value) end
	end
	if packed == '' then
		redis.call('HDEL', name, day)
		return
	end
	local added = redis.call('HSET', name, day, packed) == 1
	if added and redis.call('HLEN', name) > KEPT then -- remove dates that are too old
		local all = redis.call('HGETALL', name)
		for i = 1, #all, 2 do
			if tonumber(all[i]) + KEPT < date then redis.call('HDEL', name, all[i]) end
		end
	end
	redis.call('PEXPIRE', name, (KEPT + 1) * 86400000)
end

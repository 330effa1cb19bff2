-- Counts by days, for several scripts. Each number of a day has its own field in the hash of counters,
-- which holds the latest day. The numbers of past days are in one string for each key or user.
--
-- Reads:  past days, once a day
-- Writes: past days, once a day

local MOST = 9007199254740991 -- 2^53 - 1: the largest exact integer of a Lua number

-- DAY_COUNT: date, number.
local DAY_COUNT = '>I3I7'

-- RECORDED follows the DAY_COUNT of denials of a key: how many of these denials are in its history. An import sets none.
local RECORDED, recorded_at = '>I2', 11

-- The numbers of a day. A counter holds the allowed requests of its day: ALLOWED for a key, SHARED_ALLOWED
-- for a user.
local ALLOWED, DENIED, SHARED_ALLOWED, SHARED_DENIED = 0, 1, 2, 3

local KEPT = 400 -- days, see core.DaysKept

-- addDay adds cost to a DAY_COUNT for today, or for a later date if it has one, and returns it. When a new
-- day begins, it appends the old one to the past days of the field, and removes too old ones. It
-- builds the key of the past days itself rather than get it in KEYS: it needs that key only once a day.
local function addDay(count, cost, today, field, number)
	local day, n = 0, 0
	if count then day, n = struct.unpack(DAY_COUNT, count) end
	if today > day then
		if n > 0 then
			local name = string.sub(KEYS[1], 1, -2) .. 't:' .. field
			local over, first = redis.call('GET', name) or '', 1
			while first <= #over do
				local head = struct.unpack('>I4', over, first)
				if math.floor(head / 32) + KEPT >= today then break end
				first = first + 4 + head % 8
			end
			local size = n < 256 and 1 or n < 65536 and 2 or 7
			over = string.sub(over, first) .. struct.pack('>I4I' .. size, (day * 4 + number) * 8 + size, n)
			redis.call('SET', name, over, 'PX', (KEPT + 1) * 86400000)
		end
		day, n = today, 0
	end
	return struct.pack(DAY_COUNT, day, math.min(n + cost, MOST))
end


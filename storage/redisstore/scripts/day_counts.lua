-- What the scripts share that count by days; it stands before them. Each number of a day is
-- a tally by itself: that of its last day is in the counters, those of days that are over are
-- one after the other in a text.

local MOST = 9007199254740991 -- 2^53 - 1: what a number here can hold

-- A tally: the day, and how much.
local TALLY = '>I3I7'

-- Behind the tally of what a key was denied: how many of the denials on that day are in its
-- history. Earlier versions have left it out.
local RECORDED, recorded_at = '>I2', 11

-- The numbers of a day. What a counter allowed is in it: the first of a key, the third of a
-- user.
local ALLOWED, DENIED, SHARED_ALLOWED, SHARED_DENIED = 0, 1, 2, 3

local KEPT = 400 -- days, see core.DaysKept

-- addDay adds to a tally on the day today, or a later one that it has seen, and returns it. A
-- day that it leaves is put behind those of the user or key with the field that are over, and
-- the first of these are forgotten when they are too old. Their name is made here, and not
-- told by KEYS: it is needed once a day.
local function addDay(tally, cost, today, field, number)
	local day, n = 0, 0
	if tally then day, n = struct.unpack(TALLY, tally) end
	if today > day then
		if day > 0 or n > 0 then
			local name = string.sub(KEYS[1], 1, -2) .. (field == 'u' and 't' or 't:' .. field)
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
	return struct.pack(TALLY, day, math.min(n + cost, MOST))
end


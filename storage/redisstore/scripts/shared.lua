-- Counters and histories, for several scripts.
--
-- Reads:  sizes and the oldest entries of a history, every 64 entries
-- Writes: append writes a history, and its lateness and size fields

-- A counter has 24 bytes, then the usage: 40 bytes, or 61 if it is wide.
--
--   at  bytes
--    1      9  time of the last use
--   10      4  denials without history entry
--   14      5  key: second of the last denial, number of denials in that second
--   19      4  key: start of its request ids
--   14      9  user: time of the latest entry in any of its histories
--   23      1  key: number of moves, modulo 256
--   24      1  the form: the sum of
--              1  key: frozen by a move
--              2  the usage is wide
--              4  other meters are in the field m and the Seq of the key, or mu
--              8  open holds are in the field o and the Seq of the key, or ou: see holds.lua
--   25     40  usage in the current window of each period, and on the calendar day
--       or 61  wide: the same, then the second that all windows contain
--
-- All windows contain the second of the last use, or the second in a wide counter. The usage is wide if a number is
-- 2^40 or more, or if that second is not that of the last use.
--
-- NARROW and WIDE are the formats of a counter: the time, bytes 10 to 23, the form, and a number for each period in the
-- order of core.PeriodUsage, then that of the day. METER is the usage of another meter: a number for each period.
local NARROW, WIDE, METER = '>I5I4c14I1I5I5I5I5I5I5I5I5', '>I5I4c14I1I7I7I7I7I7I7I7I7I5', '>I7I7I7I7I7I7I7'
local PERIODS, MOST_NARROW, form_at, usage_at = (#METER - 1) / 2, 1099511627775, 24, 25
local MONTH = 3 -- the place of the month among the periods

-- DENIALS has the fields that change with a denial. LAST has the fields of a key from the last use on, LATEST
-- the latest entry of a user.
local DENIALS, denials_at, moves_at, began_at = '>I4I4I1', 10, 23, 19
local LAST, LATEST, latest_at = '>I5I4I4I4I1I4', '>I5I4', 14

-- KEYLESS has the denials of requests without a key: the second and the day of the last one, and how many are recorded in each.
local KEYLESS = '>I5I1I3I2'

-- HEAD is the start of a history entry: 0 if allowed, 60 if denied by the limit that follows at the end, 61 if allowed with a hold, 1 + its number for the reason of a denial, 62 for the end of a hold, 63 for an adjustment, plus LATE if an older entry is
-- later; time, hour until which the entry is kept. With LATE the latest time of an older entry follows, as LATEST.
local HEAD, LATE, behind_head = '>I1I5I4I4', 64, 15

-- Entries are in order of arrival, and clocks of nodes differ. The lateness field of a history says how
-- many seconds an entry may be earlier than an entry before it: "small large till". small, up to LITTLE,
-- comes from clocks that differ by seconds. large comes from a wrong clock, and is dropped when all
-- entries up to the time till have left the list. The field is missing while all entries are in order.
local LITTLE = 10

local function lateness(value)
	local small, large, till = string.match(value or '0', '^(%d+) ?(%d*) ?(%d*)$')
	return tonumber(small), tonumber(large) or 0, tonumber(till) or 0
end

-- A history of at most n entries holds at most n * BYTES_PER_ENTRY bytes: fewer entries when they are
-- longer. The size field has the bytes and the number of entries at the last check. Without the field the
-- next check computes both.
local BYTES_PER_ENTRY = 200

-- append appends an entry to a history. sec and nsec are its time, lsec and lnsec the latest time in the
-- user's histories, before the second of the previous entry in this one, keep the hour until which the
-- entry is kept, cap the maximum number of entries. It is one function: each decision would create the
-- closures of helper functions again.
local function append(list, entry, sec, nsec, lsec, lnsec, before, keep, cap, field)
	if lsec > sec or lsec == sec and lnsec > nsec then -- the entry is late
		local last = redis.call('LINDEX', list, -1)
		if last then
			local mark, msec, mnsec = struct.unpack(HEAD, last)
			if mark >= LATE then msec, mnsec = struct.unpack(LATEST, last, behind_head) end
			if msec > sec or msec == sec and mnsec > nsec then
				entry = string.char(string.byte(entry) + LATE) .. string.sub(entry, 2, behind_head - 1)
					.. struct.pack(LATEST, msec, mnsec) .. string.sub(entry, behind_head)
			end
		end
		local late, small, large, till = lsec - sec + 1, lateness(redis.call('HGET', KEYS[1], field))
		local more = late > LITTLE and (late > large or lsec > till)
		if more then large, till = math.max(large, late), math.max(till, lsec) end
		if late <= LITTLE and late > small then small, more = late, true end
		if more then
			redis.call('HSET', KEYS[1], field, large > 0 and string.format('%d %d %.0f', small, large, till) or small)
		end
	end
	local n, bytes = redis.call('RPUSH', list, entry), 'b' .. string.sub(field, 2)
	if n % 64 == 0 then -- every 64 entries: remove entries beyond the bounds, and expired entries
		local size, counted = string.match(redis.call('HGET', KEYS[1], bytes) or '', '^(%d+) (%d+)$')
		size, counted = tonumber(size) or 0, tonumber(counted) or 0
		local excess, left = n - cap, n
		if excess > 0 then
			if excess <= counted and excess <= 256 then
				for _, e in ipairs(redis.call('LRANGE', list, 0, excess - 1)) do size = size - #e end
				counted = counted - excess
			else
				size, counted = 0, 0
			end
			redis.call('LTRIM', list, -cap, -1)
			left = cap
		end
		if counted > left then size, counted = 0, 0 end
		for i = counted, left - 1, 256 do
			for _, e in ipairs(redis.call('LRANGE', list, i, i + 255)) do size = size + #e end
		end
		for over = 1, left do
			local e = redis.call('LINDEX', list, 0)
			local _, oldest, _, ends = struct.unpack(HEAD, e)
			if size <= cap * BYTES_PER_ENTRY and (over > 128 or ends * 3600 >= sec) then
				local value = redis.call('HGET', KEYS[1], field)
				if value then -- drop large if its entries have left the list
					local small, large, till = lateness(value)
					if large > 0 and oldest > till then redis.call('HSET', KEYS[1], field, small) end
				end
				break
			end
			redis.call('LPOP', list)
			size, left = size - #e, left - 1
		end
		redis.call('HSET', KEYS[1], bytes, string.format('%.0f %.0f', size, left))
	end
	if n == 1 then redis.call('HDEL', KEYS[1], bytes) end -- size of an earlier list
	-- Extend the TTL: once an hour if the clocks are right
	if n == 1 or lsec - sec > LITTLE or sec - sec % 3600 > before then
		local lives = (keep + 1) * 3600000 - sec * 1000
		if redis.call('PTTL', list) < lives then redis.call('PEXPIRE', list, string.format('%.0f', lives)) end
	end
end

-- What several scripts share; it stands before them.

-- A counter: the days on which the windows begin, what was used in them, the last use,
-- denials that are not in the history, then of a key the second of its last denial and
-- how many there were in it, when the request ids began, moves, whether it is leaving; of
-- a user the time of the latest entry in its history.
local COUNTER = '>I3I3I3I3I7I7I7I7I5I4I4I4I1I4I1I1'
local LATEST, latest_at = '>I5I4', 54

-- What stands before an entry of a history: whether it was denied, its time, and the hour
-- until which it must be kept.
local HEAD = '>I1I5I4I4'

-- append puts an entry at the end of a history. sec and nsec are its time, lsec and lnsec
-- the latest before it, or a little more. How much an entry may be earlier than one before
-- it is kept in a field of the counters.
local function append(list, entry, sec, nsec, lsec, lnsec, keep, cap, field)
	local n = redis.call('RPUSH', list, entry)
	if lsec > sec or lsec == sec and lnsec > nsec then
		local late = lsec - sec + 1
		if late > tonumber(redis.call('HGET', KEYS[1], field) or 0) then redis.call('HSET', KEYS[1], field, late) end
	end
	if n % 16 == 0 then -- now and then, what is too many or over
		if n > cap then redis.call('LTRIM', list, -cap, -1) end
		for _ = 1, 32 do
			local _, _, _, ends = struct.unpack(HEAD, redis.call('LINDEX', list, 0))
			if ends * 3600 >= sec then break end
			redis.call('LPOP', list)
		end
	end
	if n == 1 or math.floor(sec / 3600) > math.floor(lsec / 3600) then -- once an hour
		local lives = (keep + 1) * 3600000 - sec * 1000
		if redis.call('PTTL', list) < lives then redis.call('PEXPIRE', list, string.format('%.0f', lives)) end
	end
end


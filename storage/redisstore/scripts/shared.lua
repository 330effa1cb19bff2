-- What several scripts share; it stands before them.

-- A counter: the days on which the windows begin, what was used in them, the last
-- use, denials that are not in the history, the second of the last denial and how
-- many there were in it, when the request ids began, moves, whether it is leaving.
local COUNTER = '>I3I3I3I3I7I7I7I7I5I4I4I4I1I4I1I1'

-- What stands before an entry of a history: whether it was denied, its time, the latest
-- time up to here, by how many milliseconds any was earlier than the latest before it,
-- and the hour until which the list must be kept.
local HEAD = '>I1I5I4I5I4I5I4'

-- append puts an entry at the head of a history. at is its time in seconds and
-- nanoseconds, the hour until which it must be kept, and how many entries are.
local function append(list, at, denied, entry)
	local sec, nsec, keep, cap = at[1], at[2], at[3], at[4]
	local lsec, lnsec, late, known = sec, nsec, 0, 0
	local head = redis.call('LINDEX', list, 0)
	if head then
		local _, hsec, hnsec
		_, _, _, hsec, hnsec, late, known = struct.unpack(HEAD, head)
		keep = math.max(keep, known)
		if hsec > sec or hsec == sec and hnsec > nsec then
			lsec, lnsec = hsec, hnsec
			late = math.max(late, (hsec - sec) * 1000 + math.ceil((hnsec - nsec) / 1000000))
		end
	end
	local n = redis.call('LPUSH', list, struct.pack(HEAD, denied, sec, nsec, lsec, lnsec, late, keep) .. entry)
	if n > cap then
		redis.call('LTRIM', list, 0, cap - 1)
	elseif n % 16 == 0 then -- now and then, what is over at the end
		for _ = 1, 32 do
			local last = redis.call('LINDEX', list, -1)
			if select(7, struct.unpack(HEAD, last)) * 3600 >= sec then break end
			redis.call('RPOP', list)
		end
	end
	if keep > known then -- once an hour at most
		redis.call('PEXPIRE', list, string.format('%.0f', (keep + 1) * 3600000 - sec * 1000))
	end
end


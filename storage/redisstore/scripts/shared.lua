-- What several scripts share; it stands before them.

-- A counter: the days on which the windows begin, what was used in them, the last use,
-- denials that are not in the history, then of a key the second of its last denial and
-- how many there were in it, when the request ids began, moves, whether it is leaving; of
-- a user the time of the latest entry in its history and those of its keys.
--
-- By parts: what changes with use; of a key what changes with denials, when the request ids
-- began, and all that from the last use on; of a user the latest entry.
local USE = '>I3I3I3I3I7I7I7I7I5I4'
local DENIALS, denials_at, began_at = '>I4I4I1', 50, 59
local LAST, last_at = '>I5I4I4I4I1I4', 41
local LATEST, latest_at = '>I5I4', 54

-- What stands before an entry of a history: whether it was denied, its time, and the hour
-- until which it must be kept.
local HEAD = '>I1I5I4I4'

-- By how many seconds an entry of a history may be earlier than one before it is kept in a
-- field of the counters, once one was: as clocks that differ a little make them, and, after
-- two spaces that part them, how many more a wrong clock has made them, until the time that it
-- showed is over in the whole list.
local LITTLE = 10

local function lateness(value)
	local little, much, till = string.match(value or '0', '^(%d+) ?(%d*) ?(%d*)$')
	return tonumber(little), tonumber(much) or 0, tonumber(till) or 0
end

-- A history of at most n entries holds at most n * BYTES_PER_ENTRY bytes: fewer entries when they are
-- longer. A field of the counters has the size of the history in bytes and its number of
-- entries at the last check. Without the field the size is added up again.
local BYTES_PER_ENTRY = 200

-- append puts an entry at the end of a history. sec and nsec are its time, lsec and lnsec
-- the latest before it in any history of the user, before the second of one in this. It is
-- one piece, because every decision would make the functions of others anew.
local function append(list, entry, sec, nsec, lsec, lnsec, before, keep, cap, field)
	local n = redis.call('RPUSH', list, entry)
	if lsec > sec or lsec == sec and lnsec > nsec then -- note by how much it is late
		local late, little, much, till = lsec - sec + 1, lateness(redis.call('HGET', KEYS[1], field))
		local more = late > LITTLE and (late > much or lsec > till)
		if more then much, till = math.max(much, late), math.max(till, lsec) end
		if late <= LITTLE and late > little then little, more = late, true end
		if more then
			redis.call('HSET', KEYS[1], field, much > 0 and string.format('%d %d %.0f', little, much, till) or little)
		end
	end
	local bytes = 'b' .. string.sub(field, 2)
	if n % 64 == 0 then -- every 64 entries: remove entries beyond the bounds, and those that have ended
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
				if value then -- forget how late an entry was that is gone
					local little, much, till = lateness(value)
					if much > 0 and oldest > till then redis.call('HSET', KEYS[1], field, little) end
				end
				break
			end
			redis.call('LPOP', list)
			size, left = size - #e, left - 1
		end
		redis.call('HSET', KEYS[1], bytes, string.format('%.0f %.0f', size, left))
	end
	if n == 1 then redis.call('HDEL', KEYS[1], bytes) end -- the size of an earlier list
	if n == 1 or lsec - sec > LITTLE or sec - sec % 3600 > before then -- once an hour, while clocks are right
		local lives = (keep + 1) * 3600000 - sec * 1000
		if redis.call('PTTL', list) < lives then redis.call('PEXPIRE', list, string.format('%.0f', lives)) end
	end
end

-- The status of a snapshot in the slot of a user, for the scripts that read from it.
--
-- Reads:  the open snapshot, the id in the before images, the time of the server
-- Writes: nothing

-- OPEN: the instant has passed. EARLY: it has not. LOST: the snapshot or its before images are missing, or it has ended.
local OPEN, EARLY, LOST = 1, 2, 3

-- statusOf returns the status. KEYS[1] is the hash of counters, saved that of the before images.
local function statusOf(id, saved)
	local snapshot = redis.call('HGET', KEYS[1], 'z')
	local made, forgotten = unpack(redis.call('HMGET', saved, 'z', 'f'))
	if not snapshot then return made == id and forgotten and OPEN or LOST end
	local open, instant, till, changed = string.match(snapshot, '^(%S+) (%d+) (%d+)(.*)$')
	local time = redis.call('TIME')
	local now = time[1] * 1000000 + time[2]
	if open ~= id or now > tonumber(till) or changed ~= '' and made ~= id then return LOST end
	return now < tonumber(instant) and EARLY or OPEN
end


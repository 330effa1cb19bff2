-- Whether a snapshot can be read in the slot of a user, for the scripts that read from it.
--
-- Reads:  the open snapshot, the id in the before images, the time of the server
-- Writes: nothing

-- isOpen reports whether the instant has passed, and the snapshot and its before images are there. KEYS[1] is the hash of
-- counters, saved the hash of before images.
local function isOpen(id, saved)
	local snapshot = redis.call('HGET', KEYS[1], 'z')
	local made, forgotten = unpack(redis.call('HMGET', saved, 'z', 'f'))
	if not snapshot then return made == id and forgotten end
	local open, instant, till, changed = string.match(snapshot, '^(%S+) (%d+) (%d+)(.*)$')
	local time = redis.call('TIME')
	local now = time[1] * 1000000 + time[2]
	if open ~= id or now > tonumber(till) then return false end
	if changed == '' then return now >= tonumber(instant) end
	return made == id
end


-- Before images of the counters of a user, for a snapshot of its account (snapshot.go).
--
-- Reads:  with an open snapshot: the time of the server, the before images, the fields of a counter
-- Writes: the before images of a counter at its first change after the instant of the snapshot

-- The field z of the hash of counters is the open snapshot: its id, the instant and the end of the snapshot in
-- microseconds, then "images" once there are before images. images is their hash while the instant has passed, nil
-- otherwise. It has, under the same names, the fields of each changed counter as they were at the instant; the counter itself
-- is '' if it did not exist. Besides:
--
--   z            id of the snapshot
--   f            the hash of counters is empty and was removed, with the snapshot in it
--   t and field  the past days, if they have changed
--   n and field  entries that were appended to the history since the instant
--   g and field  the history is in zh or zh:<seq>, with so many entries: it was deleted since
local images = nil

-- saveImages saves the before images of counters. It must run before the first write to these counters.
local function saveImages(snapshot, ...)
	local id, instant, till, made = string.match(snapshot, '^(%S+) (%d+) (%d+)(.*)$')
	local time = redis.call('TIME')
	local now = time[1] * 1000000 + time[2]
	-- Once there are images, the instant has passed, even if the clock was set back.
	if made == '' and now < tonumber(instant) then return end
	local name = string.sub(KEYS[1], 1, -2) .. 'z'
	local saved = redis.call('HMGET', name, 'z', ...)
	if now > tonumber(till) or made ~= '' and saved[1] ~= id then -- the snapshot has ended, or its images are lost
		redis.call('HDEL', KEYS[1], 'z')
		redis.call('UNLINK', name)
		return
	end
	if made == '' then
		redis.call('HSET', name, 'z', id)
		redis.call('PEXPIRE', name, string.format('%.0f', math.ceil((till - now) / 1000)))
		redis.call('HSET', KEYS[1], 'z', snapshot .. ' images')
	end
	images = name
	for n, field in ipairs({...}) do
		if not saved[n + 1] then
			local names = {field, 'm' .. field, 'd' .. field, 'l' .. field}
			if field == 'u' then names = {'u', 'mu', 'a', 'd', 's', 'l'} end
			local values = redis.call('HMGET', KEYS[1], unpack(names))
			for i, value in ipairs(values) do
				if value or i == 1 then redis.call('HSET', name, names[i], value or '') end
			end
		end
	end
end


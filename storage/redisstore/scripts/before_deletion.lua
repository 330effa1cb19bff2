-- Before images of a counter that a script deletes, with its history and its past days.
--
-- Reads:  with an open snapshot: the before images, the past days, the size of the hash of counters, the tombstone of the user
-- Writes: the before images; moves the history to zh or zh:<seq>

-- saveDeleted saves a counter whose history and past days are about to be deleted.
local function saveDeleted(snapshot, field, history, past)
	saveImages(snapshot, field)
	if not images or redis.call('HGET', images, field) == '' or redis.call('HEXISTS', images, 'g' .. field) == 1 then return end
	redis.call('HSETNX', images, 't' .. field, redis.call('GET', past) or '')
	local to, since = images .. (field == 'u' and 'h' or 'h:' .. field), redis.call('HGET', images, 'n' .. field) or 0
	redis.call('UNLINK', to) -- of an earlier snapshot
	if redis.call('EXISTS', history) == 1 then
		redis.call('RENAME', history, to)
		redis.call('LTRIM', to, 0, -1 - since)
		redis.call('PEXPIRE', to, redis.call('PTTL', images))
	end
	redis.call('HSET', images, 'g' .. field, redis.call('LLEN', to))
end

-- forget removes the images of a deleted counter that did not exist at the instant either. It removes the snapshot from the
-- hash of a deleted user without counters, and with it the hash.
local function forget(snapshot, field)
	if images and redis.call('HGET', images, field) == '' then redis.call('HDEL', images, field, 'n' .. field, 't' .. field) end
	if not snapshot or redis.call('HLEN', KEYS[1]) ~= 1 then return end
	if redis.call('EXISTS', string.sub(KEYS[1], 1, -2) .. 'x') == 0 then return end -- the user may count later
	if images then redis.call('HSET', images, 'f', '1') end
	redis.call('HDEL', KEYS[1], 'z')
end


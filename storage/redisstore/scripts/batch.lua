-- Runs commands on keys of one slot atomically.
--
-- Reads:  the version of the slot, and the keys of the commands
-- Writes: with an expected version: the version, and the keys of the commands; without: nothing
--         with an open snapshot: before images of the keys of the commands
--
-- KEYS  1 version of the slot  2… keys of the commands
-- ARGV  1 expected version, '' to read only
--       2 next version  3 '' to write even if memory is full
--       then for each command: number of arguments, name, position of its key in KEYS, arguments
--
-- Returns the version before. Behind it: the answers of the commands if the batch reads, 'done' if it
-- writes, nothing if the version is not the expected one or an open snapshot makes transactions wait.
--
-- Two commands are not of Redis. INVALIDATE writes and deletes its key, so that client tracking reports the
-- key. SYNC_HOLDER updates the index of a plan's users: the user belongs to the index if its record exists
-- and it is on the plan, itself or by a key. Its key is the index; its arguments are the positions of the
-- index of users on the plan, of the index of the user's keys on the plan, and of the user's record, then
-- the user's ID.

-- The open snapshots of the slot are described in open_snapshot.lua. images are the hashes of before images of those
-- whose instant has passed:
--
--   name of a key                       the value that SET or UNLINK has changed, '' if there was none
--   name of a key, line feed, field     the value that HSET has changed, '' if there was none
--
-- ZREM adds the members that it removes from the index of all users, plans or keys to an index of removed resources. A resource
-- that was created after the instant leaves no image when it is deleted.
local images = {}
local imagedHashes = {last = true, accounts = true, owners = true, access = true} -- a snapshot reads no other hashes
local slot = string.match(KEYS[1], '^[^}]*}') -- with the hash tag, without the name of the version

local function saveImages(command, key, first, last)
	for _, image in ipairs(images) do
		if command == 'SET' or command == 'UNLINK' then
			redis.call('HSETNX', image, key, redis.call('GET', key) or '')
		elseif command == 'HSET' and imagedHashes[string.sub(key, #slot + 1)] then
			for j = first, last, 2 do
				redis.call('HSETNX', image, key .. '\n' .. ARGV[j], redis.call('HGET', key, ARGV[j]) or '')
			end
		elseif command == 'ZREM' then
			local index = string.sub(key, #slot + 1)
			local all = index == 'users' or index == 'plans' or index == 'keys'
			for j = first, last do
				local score = all and redis.call('ZSCORE', key, ARGV[j])
				local record = slot .. string.sub(index, 1, 1) .. ':' .. ARGV[j]
				local before = score and redis.call('HGET', image, record)
				if before == '' and redis.call('EXISTS', record) == 0 then
					redis.call('HDEL', image, record)
				elseif before and before ~= '' then
					redis.call('ZADD', image .. ':' .. index, 'NX', score, ARGV[j])
				end
			end
		end
	end
end

local version = redis.call('GET', KEYS[1]) or '0'
local writes = ARGV[1] ~= ''
if writes then
	if version ~= ARGV[1] then return {version} end
	local snapshots = redis.call('GET', slot .. 'snapshots')
	if snapshots then
		local time = redis.call('TIME')
		local now = time[1] * 1000000 + time[2]
		for account, instant, waits, till in string.gmatch(snapshots, '(%S+) %S+ (%d+) (%d+) (%d+) %d+\n') do
			if now >= tonumber(instant) then
				if now <= tonumber(till) then images[#images + 1] = slot .. 'before:' .. account end
			elseif now >= tonumber(waits) then
				return {version}
			end
		end
	end
	-- Redis denies only the first write of a script when memory is full, and never a deletion.
	if ARGV[3] == '' then redis.call('DEL', KEYS[1]) end
	redis.call('SET', KEYS[1], ARGV[2])
end

local out, i = {version}, 4
while i <= #ARGV do
	local n, name, key = tonumber(ARGV[i]), ARGV[i + 1], KEYS[tonumber(ARGV[i + 2])]
	local answer = false
	if name == 'INVALIDATE' then
		redis.call('SET', key, '')
		redis.call('DEL', key)
	elseif name == 'SYNC_HOLDER' then
		local own, keys = KEYS[tonumber(ARGV[i + 3])], KEYS[tonumber(ARGV[i + 4])]
		local record, user = KEYS[tonumber(ARGV[i + 5])], ARGV[i + 6]
		if redis.call('EXISTS', record) == 1 and (redis.call('ZSCORE', own, user) or redis.call('ZCARD', keys) > 0) then
			redis.call('ZADD', key, user, user)
		else
			redis.call('ZREM', key, user)
		end
	else
		if images[1] then saveImages(name, key, i + 3, i + 2 + n) end
		answer = redis.call(name, key, unpack(ARGV, i + 3, i + 2 + n))
	end
	if not writes then out[#out + 1] = answer end
	i = i + 3 + n
end
if writes then out[2] = 'done' end
return out

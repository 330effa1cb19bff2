-- Runs commands on keys of one slot, all or none: those of a transaction only if
-- nobody has changed anything since it began.
--
-- KEYS  1 the version of the slot  2… the keys of the commands
-- ARGV  1 the version that must be, to write; '' to look
--       2 the version afterwards  3 '' to write though the memory is full
--       then for each command how many arguments it has, its name, the number of its
--       key in KEYS, its arguments
--
-- Returns the version that was, and what the commands return; when it is not the one
-- that must be, the version alone.
--
-- TELL is no command of the server: it tells whoever watches keys of that name, and
-- leaves nothing. HOLDS keeps the users that hold a plan: it adds or removes a user,
-- whether it is there and has the plan itself or by a key; its key is the index, its
-- arguments are the numbers of the keys of both other indexes and of the user's record, and
-- the user.

local version = redis.call('GET', KEYS[1]) or '0'
local writes = ARGV[1] ~= ''
if writes then
	if version ~= ARGV[1] then return {version} end
	-- Only the first write of a script is refused for want of memory, and no deletion is.
	if ARGV[3] == '' then redis.call('DEL', KEYS[1]) end
	redis.call('SET', KEYS[1], ARGV[2])
end

local out, i = {version}, 4
while i <= #ARGV do
	local n, name, key = tonumber(ARGV[i]), ARGV[i + 1], KEYS[tonumber(ARGV[i + 2])]
	local answer = false
	if name == 'TELL' then
		redis.call('SET', key, '')
		redis.call('DEL', key)
	elseif name == 'HOLDS' then
		local own, keys = KEYS[tonumber(ARGV[i + 3])], KEYS[tonumber(ARGV[i + 4])]
		local record, user = KEYS[tonumber(ARGV[i + 5])], ARGV[i + 6]
		if redis.call('EXISTS', record) == 1 and (redis.call('ZSCORE', own, user) or redis.call('ZCARD', keys) > 0) then
			redis.call('ZADD', key, user, user)
		else
			redis.call('ZREM', key, user)
		end
	else
		answer = redis.call(name, key, unpack(ARGV, i + 3, i + 2 + n))
	end
	if not writes then out[#out + 1] = answer end
	i = i + 3 + n
end
if writes then out[2] = 'done' end
return out

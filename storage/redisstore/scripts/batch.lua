-- Runs commands on keys of one slot atomically.
--
-- Reads:  the version of the slot, and the keys of the commands
-- Writes: with an expected version: the version, and the keys of the commands; without: nothing
--
-- KEYS  1 version of the slot  2… keys of the commands
-- ARGV  1 expected version, '' to read only
--       2 next version  3 '' to write even if memory is full
--       then for each command: number of arguments, name, position of its key in KEYS, arguments
--
-- Returns the version before. Behind it: the answers of the commands if the batch reads, 'done' if it
-- writes, nothing if the version is not the expected one.
--
-- Two commands are not of Redis. INVALIDATE writes and deletes its key, so that client tracking reports the
-- key. RECORDS returns the size of a sorted set and the records of some of its members; nil for a missing
-- record. Its arguments are the key of a record without its id, and the arguments of ZRANGE.

local version = redis.call('GET', KEYS[1]) or '0'
local writes = ARGV[1] ~= ''
if writes then
	if version ~= ARGV[1] then return {version} end
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
	elseif name == 'RECORDS' then
		answer = {redis.call('ZCARD', key)}
		for _, id in ipairs(redis.call('ZRANGE', key, unpack(ARGV, i + 4, i + 2 + n))) do
			answer[#answer + 1] = redis.call('GET', ARGV[i + 3] .. id)
		end
	else
		answer = redis.call(name, key, unpack(ARGV, i + 3, i + 2 + n))
	end
	if not writes then out[#out + 1] = answer end
	i = i + 3 + n
end
if writes then out[2] = 'done' end
return out

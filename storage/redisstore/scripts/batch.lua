-- Runs commands on keys of one slot atomically.
--
-- Reads:  the version of the slot, and the keys of the commands
-- Writes: the keys of the commands; with an expected version: the version, too
--
-- KEYS  1 version of the slot  2… keys of the commands
-- ARGV  1 expected version, '' for none, as of a batch that reads
--       2 next version  3 '' to write even if memory is full
--       then for each command: number of arguments, name, position of its key in KEYS, arguments
--
-- Returns the version before. Behind it: the answers of the commands if the batch reads, 'done' and the
-- numbers of the new entries of audit logs if it writes, nothing if the version is not the expected one.
--
-- Four commands are not commands of Redis. AUDIT changes an audit log: see audit() below. CLAIM sets a field of a hash. If the field has another value, the
-- batch writes nothing, as with another version. INVALIDATE writes and deletes its key, so that client tracking reports the
-- key. RECORDS returns the size of a sorted set and the records of some of its members; nil for a missing
-- record. Its arguments are the key of a record without its id, and the arguments of ZRANGE.

-- audit removes entries of a sorted set, appends others, and then removes the oldest beyond the bounds. A member is the total
-- size of all entries that were ever appended, this one included, then a space and the entry. Its score is the number of the entry.
--
-- ARGV, from first to last:
--       1 the most entries  2 the most bytes  3 the most entries to remove  4 their first number  5 their last number, 0 to remove none
--       then for each new entry: the wanted number, the entry
-- Returns the numbers of the new entries.
local function audit(key, first, last)
	local function total(member) return tonumber(string.match(member, '^%d+')) end
	local entries, size, removed = tonumber(ARGV[first]), tonumber(ARGV[first + 1]), ARGV[first + 2]
	if ARGV[first + 4] ~= '0' then
		for _, m in ipairs(redis.call('ZRANGE', key, ARGV[first + 3], ARGV[first + 4], 'BYSCORE', 'LIMIT', 0, removed)) do redis.call('ZREM', key, m) end
	end
	local newest = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
	local bytes, number = 0, -2
	if newest[1] then bytes, number = total(newest[1]), tonumber(newest[2]) end
	local numbers = {}
	for i = first + 5, last, 2 do
		number = math.max(tonumber(ARGV[i]), number + 2)
		bytes = bytes + #ARGV[i + 1]
		numbers[#numbers + 1] = string.format('%.0f', number)
		redis.call('ZADD', key, numbers[#numbers], string.format('%.0f ', bytes) .. ARGV[i + 1])
	end
	local count = redis.call('ZCARD', key)
	while count > 1 do
		local oldest = redis.call('ZRANGE', key, 0, 0)[1]
		local before = total(oldest) - (#oldest - #string.match(oldest, '^%d+ '))
		if count <= entries and bytes - before <= size then break end
		redis.call('ZREM', key, oldest)
		count = count - 1
	end
	return numbers
end

local version = redis.call('GET', KEYS[1]) or '0'
local writes = ARGV[1] ~= ''
if writes then
	if version ~= ARGV[1] then return {version} end
	local i = 4
	while i <= #ARGV do
		if ARGV[i + 1] == 'CLAIM' then
			local holder = redis.call('HGET', KEYS[tonumber(ARGV[i + 2])], ARGV[i + 3])
			if holder and holder ~= ARGV[i + 4] then return {version} end
		end
		i = i + 3 + tonumber(ARGV[i])
	end
	-- Redis denies only the first write of a script when memory is full, and never a deletion.
	if ARGV[3] == '' then redis.call('DEL', KEYS[1]) end
	redis.call('SET', KEYS[1], ARGV[2])
end

local out, numbers, i = {version}, {}, 4
while i <= #ARGV do
	local n, name, key = tonumber(ARGV[i]), ARGV[i + 1], KEYS[tonumber(ARGV[i + 2])]
	local answer = false
	if name == 'INVALIDATE' then
		redis.call('SET', key, '')
		redis.call('DEL', key)
	elseif name == 'CLAIM' then
		redis.call('HSET', key, ARGV[i + 3], ARGV[i + 4])
	elseif name == 'AUDIT' then
		numbers = audit(key, i + 3, i + 2 + n)
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
if writes then
	out[2] = 'done'
	for _, number in ipairs(numbers) do out[#out + 1] = number end
end
return out

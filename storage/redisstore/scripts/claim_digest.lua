-- Adds a key to the entry of a digest, behind the keys that the entry lists already.
--
-- Reads:  the entry
-- Writes: the entry
--
-- KEYS  1 entry of the digest: account and id of each API key, one a line
-- ARGV  1 account and id of the API key
--
-- Returns 1, or 0 if the entry lists the key already.

local entry = redis.call('GET', KEYS[1])
if not entry then
	redis.call('SET', KEYS[1], ARGV[1])
	return 1
end
for holder in string.gmatch(entry, '[^\n]+') do
	if holder == ARGV[1] then return 0 end
end
redis.call('SET', KEYS[1], entry .. '\n' .. ARGV[1])
return 1

-- Removes a key from the entry of a digest, and deletes an empty entry.
--
-- Reads:  the entry
-- Writes: the entry
--
-- KEYS  1 entry of the digest: account and id of each API key, one a line
-- ARGV  1 account and id of the API key
--
-- Returns 1, or 0 if the entry does not list the key.

local left, found = {}, 0
for holder in string.gmatch(redis.call('GET', KEYS[1]) or '', '[^\n]+') do
	if holder == ARGV[1] then found = 1 else left[#left + 1] = holder end
end
if found == 0 then return 0 end
if left[1] then
	redis.call('SET', KEYS[1], table.concat(left, '\n'))
else
	redis.call('DEL', KEYS[1])
end
return 1

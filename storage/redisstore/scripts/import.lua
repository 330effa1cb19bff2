-- Appends entries to the histories of a user and of its keys, and counts nothing.
--
-- KEYS  1 counters of the user  2 its history  3… histories of keys
-- ARGV  1 entries that a history holds at most  2… Seq of each of the keys
--       then each entry, behind the number of its key, whether it was denied, its time and
--       the hour until which it must be kept
--
-- Returns 0 when one of the counters is not here: then nothing was appended.

local cap, keys = tonumber(ARGV[1]), #KEYS - 2
for i = 1, keys do
	local counter = redis.call('HGET', KEYS[1], ARGV[1 + i])
	if not counter or struct.unpack('>I1', counter, 64) == 1 then return 0 end
end
if redis.call('HEXISTS', KEYS[1], 'u') == 0 then return 0 end
for i = keys + 2, #ARGV do
	local key, denied, sec, nsec, keep, rest = struct.unpack('>I2I1I5I4I4', ARGV[i])
	local entry = string.sub(ARGV[i], rest)
	local at = {sec, nsec, keep, cap}
	append(KEYS[2], at, denied, entry)
	append(KEYS[2 + key], at, denied, entry)
end
return 1

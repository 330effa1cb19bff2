-- Imports a counter: it replaces the usage, the time of the last use and the denials without history
-- entry. It keeps the allowed requests of the replaced counter's day if that is another day.
--
-- Reads:  the counter
-- Writes: the counter, and past days
--
-- KEYS  1 hash of counters
-- ARGV  1 Seq of the key, or u  2 the counter
--
-- Returns 1, or 0 if there is no counter.

local counter = redis.call('HGET', KEYS[1], ARGV[1])
if not counter then return 0 end
local day, used = struct.unpack('>I3', counter), struct.unpack('>I7', counter, 13)
if day ~= struct.unpack('>I3', ARGV[2]) then
	addDay(struct.pack(DAY_COUNT, day, used), 0, day + 1, ARGV[1], ARGV[1] == 'u' and SHARED_ALLOWED or ALLOWED)
end
redis.call('HSET', KEYS[1], ARGV[1], string.sub(ARGV[2], 1, 53) .. string.sub(counter, 54))
return 1

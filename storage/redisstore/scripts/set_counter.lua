-- Puts a counter in place of one: what it says of use, and of denials that are not in the
-- history. What it allowed on another day stays.
--
-- KEYS  1 counters of the user
-- ARGV  1 Seq of the key, or u  2 the counter
--
-- Returns 0 when there is none.

local counter = redis.call('HGET', KEYS[1], ARGV[1])
if not counter then return 0 end
local day, used = struct.unpack('>I3', counter), struct.unpack('>I7', counter, 13)
if day ~= struct.unpack('>I3', ARGV[2]) then
	addDay(struct.pack(TALLY, day, used), 0, day + 1, ARGV[1], ARGV[1] == 'u' and SHARED_ALLOWED or ALLOWED)
end
redis.call('HSET', KEYS[1], ARGV[1], string.sub(ARGV[2], 1, 53) .. string.sub(counter, 54))
return 1

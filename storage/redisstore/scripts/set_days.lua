-- Puts days in place of those of a key or user. What its counter says of its day stays.
--
-- KEYS  1 counters of the user  2 the days that are over
-- ARGV  1 Seq of the key, or u  2 the days that are over  3 for how long they are kept, milliseconds
--       then each field of a tally and the tally, '' for none
--
-- Returns 0 when there is no counter.

if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
if ARGV[2] ~= '' then redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3]) else redis.call('UNLINK', KEYS[2]) end
for i = 4, #ARGV, 2 do
	if ARGV[i + 1] ~= '' then
		redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
	else
		redis.call('HDEL', KEYS[1], ARGV[i])
	end
end
return 1

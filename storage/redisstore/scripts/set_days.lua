-- Imports the days of a key or user. It does not change the counter, which holds one number of its day.
--
-- Reads:  whether the counter exists
-- Writes: past days, the other day fields, and the days of meters
--
-- KEYS  1 hash of counters  2 past days  3 days of meters, a hash
-- ARGV  1 Seq of the key, or u  2 past days  3 their lifetime in milliseconds
--       4 number of days of meters, then the date and the numbers of each
--       then name and value of each other day field, '' to delete the field
--
-- Returns 1, or 0 if there is no counter.

if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
if ARGV[2] ~= '' then redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3]) else redis.call('UNLINK', KEYS[2]) end
redis.call('UNLINK', KEYS[3])
local rest = 5 + 2 * ARGV[4]
for i = 5, rest - 2, 2 do redis.call('HSET', KEYS[3], ARGV[i], ARGV[i + 1]) end
if rest > 5 then redis.call('PEXPIRE', KEYS[3], ARGV[3]) end
for i = rest, #ARGV, 2 do
	if ARGV[i + 1] ~= '' then
		redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
	else
		redis.call('HDEL', KEYS[1], ARGV[i])
	end
end
return 1

-- Imports the days of a key or user. It does not change the counter, which holds one number of its day.
--
-- Reads:  the counter
-- Writes: past days, the other day fields, the days of meters, and hours
--
-- KEYS  1 hash of counters  2 past days  3 days of meters, a hash  4 hours, a list
-- ARGV  1 Seq of the key, or u  2 past days  3 their lifetime in milliseconds
--       4 elements of the list of hours, oldest first, each after its size in 3 bytes; '' for none  5 their lifetime in milliseconds
--       6 number of days of meters, then the date and the numbers of each
--       then name and value of each other day field, '' to delete the field
--
-- Returns 1, or 0 if there is no counter.

local counter = redis.call('HGET', KEYS[1], ARGV[1])
if not counter then return 0 end
if ARGV[2] ~= '' then redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3]) else redis.call('UNLINK', KEYS[2]) end
redis.call('UNLINK', KEYS[3])
local rest = 7 + 2 * ARGV[6]
for i = 7, rest - 2, 2 do redis.call('HSET', KEYS[3], ARGV[i], ARGV[i + 1]) end
if rest > 7 then redis.call('PEXPIRE', KEYS[3], ARGV[3]) end
for i = rest, #ARGV, 2 do
	if ARGV[i + 1] ~= '' then
		redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
	else
		redis.call('HDEL', KEYS[1], ARGV[i])
	end
end
redis.call('UNLINK', KEYS[4])
redis.call('HDEL', KEYS[1], 'e' .. ARGV[1])
if ARGV[4] ~= '' then
	local at = 1
	while at <= #ARGV[4] do
		local size, first = struct.unpack('>I3', ARGV[4], at)
		at = first + size
		redis.call('RPUSH', KEYS[4], string.sub(ARGV[4], first, at - 1))
		redis.call('HSET', KEYS[1], 'e' .. ARGV[1], string.sub(ARGV[4], first, first + 2))
	end
	redis.call('PEXPIRE', KEYS[4], ARGV[5])
end
local used, number, day = todayOf(counter, ARGV[1])
keepHour(ARGV[1], day, number, '', NO_HOUR, used)
return 1

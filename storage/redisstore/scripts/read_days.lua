-- Returns the counter and the days of a key or user.
--
-- Reads:  fields of the hash of counters, the past days, the days of meters
-- Writes: nothing
--
-- KEYS  1 hash of counters  2 past days, a string  3 days of meters, a hash
-- ARGV  1 the only date to read, '' for all  2… fields: the counter, the other day fields, the other meters
--
-- Returns the fields, then the past days, then dates and the days of meters; nil for each that is missing. With a date, it returns nil for the past
-- days.

local out = redis.call('HMGET', KEYS[1], unpack(ARGV, 2))
if ARGV[1] == '' then
	out[#out + 1] = redis.call('GET', KEYS[2])
	out[#out + 1] = redis.call('HGETALL', KEYS[3])
else
	out[#out + 1] = false
	out[#out + 1] = {ARGV[1], redis.call('HGET', KEYS[3], ARGV[1]) or ''}
end
return out

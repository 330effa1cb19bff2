-- Returns the counter and the days of a key or user.
--
-- Reads:  fields of the hash of counters, the past days
-- Writes: nothing
--
-- KEYS  1 hash of counters  2 past days, a string
-- ARGV  1… fields: the counter, the other day fields, the other meters
--
-- Returns the fields, then the past days; nil for each that is missing.

local out = redis.call('HMGET', KEYS[1], unpack(ARGV))
out[#out + 1] = redis.call('GET', KEYS[2])
return out

-- Returns what there is of the days of a key or user: the fields, and the days that are over.
--
-- KEYS  1 counters of the user  2 the days that are over
-- ARGV  1… fields: the counter, then tallies of a day

local out = redis.call('HMGET', KEYS[1], unpack(ARGV))
out[#out + 1] = redis.call('GET', KEYS[2])
return out

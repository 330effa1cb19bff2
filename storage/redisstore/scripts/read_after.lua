-- Returns the records of the resources in an index that follow a number, in the order of their numbers.
--
-- Reads:  the index, and the records
-- Writes: nothing
--
-- KEYS  1 the index, a sorted set
-- ARGV  1 key of a record without its id, in the same slot
--       2 number that the resources follow  3 maximum number of records
--
-- Returns the records; nil for a missing record.

local out = redis.call('ZRANGE', KEYS[1], '(' .. ARGV[2], '+inf', 'BYSCORE', 'LIMIT', 0, ARGV[3])
for i, id in ipairs(out) do out[i] = redis.call('GET', ARGV[1] .. id) end
return out

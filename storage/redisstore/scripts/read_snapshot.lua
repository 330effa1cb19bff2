-- Returns a counter as of the instant of a snapshot.
--
-- Reads:  the open snapshot, the before images, the fields of the counter, the past days, the time of the server
-- Writes: nothing
--
-- KEYS  1 hash of counters  2 before images  3 past days
-- ARGV  1 id of the snapshot  2 Seq of the key, or u  3… names of its other fields
--
-- Returns 1, the counter, the other fields and the past days, with nil for each missing value. Returns 1 if there was no counter,
-- and 0 if the snapshot cannot be read.

if not isOpen(ARGV[1], KEYS[2]) then return {0} end
local of = redis.call('HEXISTS', KEYS[2], ARGV[2]) == 1 and KEYS[2] or KEYS[1]
local out = {1, unpack(redis.call('HMGET', of, unpack(ARGV, 2)))}
if out[2] == '' then return {1} end
local past = redis.call('HGET', KEYS[2], 't' .. ARGV[2])
if past then
	out[#ARGV + 1] = past
else
	out[#ARGV + 1] = redis.call('GET', KEYS[3])
end
return out

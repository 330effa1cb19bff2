-- Creates missing counters of a user and of a key. It creates nothing if either has a tombstone: the
-- caller has read them before they were deleted or moved.
--
-- Reads:  both tombstones
-- Writes: the counters that are missing
--
-- KEYS  1 hash of counters  2 tombstone of the user  3 tombstone of the key
-- ARGV  1 new counter of the user  2 Seq of the key, '' for none  3 new counter of the key
--
-- Returns 1, or 0 if there is a tombstone.

if redis.call('EXISTS', KEYS[2], KEYS[3]) > 0 then return 0 end
redis.call('HSETNX', KEYS[1], 'u', ARGV[1])
if ARGV[2] ~= '' then redis.call('HSETNX', KEYS[1], ARGV[2], ARGV[3]) end
return 1

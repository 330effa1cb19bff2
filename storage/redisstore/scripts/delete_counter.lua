-- Deletes the counter of a key or user with all its data, and leaves a tombstone: a slow caller that has
-- read the key or user must not create the counter again.
--
-- Reads:  the open snapshot
-- Writes: the fields of the counter, the tombstone, the data keys; with an open snapshot: before images
--
-- KEYS  1 hash of counters  2 tombstone  3… data keys of the key or user: history, past days, request ids
-- ARGV  1 lifetime of the tombstone in milliseconds
--       2 Seq of the key, or u  3… fields of the key or user; the keys of a user are deleted separately
--
-- Returns 1.

redis.call('HDEL', KEYS[1], '') -- first, since a deletion allows the next writes even if memory is full
local snapshot = redis.call('HGET', KEYS[1], 'z')
if snapshot then saveDeleted(snapshot, ARGV[2], KEYS[3], KEYS[4]) end
redis.call('HDEL', KEYS[1], unpack(ARGV, 3))
redis.call('SET', KEYS[2], '', 'PX', ARGV[1])
redis.call('UNLINK', unpack(KEYS, 3))
forget(snapshot, ARGV[2])
return 1

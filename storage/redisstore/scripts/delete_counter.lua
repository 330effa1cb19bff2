-- Deletes the counter of a key or user with all its data, and leaves a tombstone: a slow caller that has
-- read the key or user must not create the counter again.
--
-- Reads:  the open holds of the key and of the user
-- Writes: the fields of the counter, the tombstone, the data keys, the open holds
--
-- KEYS  1 hash of counters  2 tombstone  3… data keys of the key or user: history, past days, days of meters, hours, request ids; without data keys, the data
--       stays
-- ARGV  1 lifetime of the tombstone in milliseconds  2 Seq of the key, or u
--       3… other fields of the key or user; the keys of a user are deleted separately
--
-- Returns 1.

redis.call('HDEL', KEYS[1], '') -- first, since a deletion allows the next writes even if memory is full
endHolds(ARGV[2])
redis.call('HDEL', KEYS[1], unpack(ARGV, 2))
redis.call('SET', KEYS[2], '', 'PX', ARGV[1])
if #KEYS > 2 then redis.call('UNLINK', unpack(KEYS, 3)) end
return 1

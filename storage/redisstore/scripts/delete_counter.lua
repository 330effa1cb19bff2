-- Deletes the counter of a key with all that goes with it, and leaves a mark for a while,
-- for who has read that it exists.
--
-- KEYS  1 counters of its user  2 the mark  3… what it has beside its counter
-- ARGV  1 for how long the mark is left, milliseconds
--       2… the fields of the key, or of the user: then its keys are retired by themselves

redis.call('HDEL', KEYS[1], unpack(ARGV, 2)) -- first: a full memory is not in its way
redis.call('SET', KEYS[2], '', 'PX', ARGV[1])
redis.call('UNLINK', unpack(KEYS, 3))
return 1

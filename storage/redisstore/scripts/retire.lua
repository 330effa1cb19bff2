-- Deletes the counter of a key with its history and request ids, and leaves a mark for
-- a while, for who has read that it exists.
--
-- KEYS  1 counters of its user  2 the mark  3 its history  4, 5 its request ids
-- ARGV  1 Seq of the key, or u for the user: then the keys of the user are retired by themselves
--       2 for how long the mark is left, milliseconds  3 field of how late its entries are

redis.call('HDEL', KEYS[1], ARGV[1], ARGV[3]) -- first: a full memory is not in its way
redis.call('SET', KEYS[2], '', 'PX', ARGV[2])
for i = 3, #KEYS do redis.call('UNLINK', KEYS[i]) end
return 1

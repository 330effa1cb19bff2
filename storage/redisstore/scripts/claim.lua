-- Writes down whose a digest is.
--
-- KEYS  1 the digest
-- ARGV  1 account and id of the key

redis.call('SET', KEYS[1], ARGV[1])
return 1

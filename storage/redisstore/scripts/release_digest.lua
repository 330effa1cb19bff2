-- Deletes what says whose a digest is, if it is still so.
--
-- KEYS  1 the digest
-- ARGV  1 account and id of the key

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])

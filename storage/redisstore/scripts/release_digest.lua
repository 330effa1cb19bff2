-- Deletes the entry of a digest if it still belongs to the given key.
--
-- Reads:  the entry
-- Writes: deletes the entry
--
-- KEYS  1 entry of the digest
-- ARGV  1 account and id of the API key
--
-- Returns 1, or 0 if the entry belongs to another key.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])

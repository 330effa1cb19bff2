-- Adds a hold to the holds of an account, unless there are too many. The hold itself is opened in the slot of its user.
--
-- Reads:  the holds of the account
-- Writes: the holds of the account
--
-- KEYS  1 holds of the account, a sorted set by their ends
-- ARGV  1 id of the hold  2 its end, Unix milliseconds  3 the present  4 maximum number of open holds
--
-- Returns 1, or 0 if there are too many.

if redis.call('ZCOUNT', KEYS[1], ARGV[3], '+inf') >= tonumber(ARGV[4]) then return 0 end
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1])
return 1

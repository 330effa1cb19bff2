-- Closes a snapshot in the slot of a user.
--
-- Reads:  the open snapshot, the before images
-- Writes: deletes the open snapshot, the before images and the deleted histories, unless they are of another snapshot
--
-- KEYS  1 hash of counters  2 before images
-- ARGV  1 id of the snapshot
--
-- Returns 1.

local snapshot = redis.call('HGET', KEYS[1], 'z')
if snapshot and string.match(snapshot, '^%S+') == ARGV[1] then redis.call('HDEL', KEYS[1], 'z') end
if redis.call('HGET', KEYS[2], 'z') == ARGV[1] then dropImages(KEYS[2]) end
return 1

-- Opens a snapshot in the slot of a user.
--
-- Reads:  the tombstone of the user, the time of the server
-- Writes: the open snapshot; deletes the before images of an earlier snapshot
--
-- KEYS  1 hash of counters  2 tombstone of the user  3 before images
-- ARGV  1 id of the snapshot  2 its instant in microseconds  3 its end
--
-- Returns the time of the server in microseconds, or 0 if the user was deleted. It writes nothing if the instant has passed.

if redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if now >= tonumber(ARGV[2]) then return now end
dropImages(KEYS[3]) -- first, since a deletion allows the next writes even if memory is full
redis.call('HSET', KEYS[1], 'z', table.concat(ARGV, ' '))
return now

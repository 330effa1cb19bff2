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
if redis.call('HGET', KEYS[2], 'z') ~= ARGV[1] then return 1 end
local cursor = '0'
repeat
	local page = redis.call('HSCAN', KEYS[2], cursor, 'MATCH', 'g*', 'COUNT', 1000)
	cursor = page[1]
	for i = 1, #page[2], 2 do
		local field = string.sub(page[2][i], 2)
		redis.call('UNLINK', KEYS[2] .. (field == 'u' and 'h' or 'h:' .. field))
	end
until cursor == '0'
redis.call('UNLINK', KEYS[2])
return 1

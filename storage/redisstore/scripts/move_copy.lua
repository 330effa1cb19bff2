-- Second step of a move: creates the counter and data of a key in the slot of its new user. It does
-- nothing if they exist already, or if the user or the key has a tombstone: another process has finished
-- this move or a later one.
--
-- Reads:  both tombstones, the counter, the user's counter
-- Writes: the counter, its fields and data keys, the latest entry in the user's counter; deletes the key's tombstone
--
-- KEYS  1 hash of counters of the new user  2 tombstone of the user  3 tombstone of the key there
--       4… data keys of the key: history, past days, days of meters, hours, request ids
-- ARGV  1 Seq of the key  2 number of the move, modulo 256  3 the counter from move_begin
--       4 time of the old user's latest entry, '' for none  5 to 10 each field of MOVED, '' for none
--       11… DUMP and TTL in milliseconds of each data key
--
-- Returns nil, or 0 if it does nothing.

local move = tonumber(ARGV[2])
if redis.call('EXISTS', KEYS[2]) > 0 or hasLeft(KEYS[3], move) then return 0 end
local here = redis.call('HGET', KEYS[1], ARGV[1])
if here and string.byte(here, moves_at) == move then return 0 end
for i = 4, #KEYS do -- first, since RESTORE may fail: an older server rejects a DUMP of a newer one
	local content, lives = ARGV[2 * i + 3], ARGV[2 * i + 4]
	redis.call('UNLINK', KEYS[i])
	if content and content ~= '' then redis.call('RESTORE', KEYS[i], lives, content) end
end
local form = string.byte(ARGV[3], form_at)
redis.call('HSET', KEYS[1], ARGV[1],
	string.sub(ARGV[3], 1, moves_at - 1) .. string.char(move, form - form % 2) .. string.sub(ARGV[3], usage_at))
redis.call('HDEL', KEYS[1], 'b' .. ARGV[1]) -- the next check computes the size of the history
for i, name in ipairs(MOVED) do
	if ARGV[4 + i] ~= '' then redis.call('HSET', KEYS[1], name .. ARGV[1], ARGV[4 + i]) end
end
if ARGV[4] ~= '' then -- the latest entry of a user is the latest of all its histories
	local user = redis.call('HGET', KEYS[1], 'u') or string.rep('\0', struct.size(NARROW))
	local asec, ansec = struct.unpack(LATEST, ARGV[4])
	local usec, unsec = struct.unpack(LATEST, user, latest_at)
	if asec > usec or asec == usec and ansec > unsec then
		redis.call('HSET', KEYS[1], 'u', string.sub(user, 1, latest_at - 1) .. ARGV[4] .. string.sub(user, latest_at + 9))
	end
end
redis.call('DEL', KEYS[3])
return 1

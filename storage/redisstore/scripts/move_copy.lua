-- Puts a key that has moved to its new user, unless it is there already, was deleted, or
-- has left again: whoever does it may be late.
--
-- KEYS  1 counters of the user it comes to  2 the mark of a deleted user  3 its mark
--       4… what it has beside its counter: see names.having
-- ARGV  1 Seq of the key  2 the number of the move, modulo 256  3 its counter, as it left
--       4 what is the latest where it was, '' for nothing  5 how late entries of its history are
--       6 the tally of its denials, '' for none
--       7… what it has beside its counter, each with how long it lives in milliseconds

local move = tonumber(ARGV[2])
if redis.call('EXISTS', KEYS[2]) > 0 or hasLeft(KEYS[3], move) then return 0 end
local here = redis.call('HGET', KEYS[1], ARGV[1])
if here and struct.unpack('>I1', here, 63) == move then return 0 end
for i = 4, #KEYS do -- first what may not be understood: a DUMP of a newer server
	local content, lives = ARGV[2 * i - 1], ARGV[2 * i]
	redis.call('UNLINK', KEYS[i])
	if content and content ~= '' then redis.call('RESTORE', KEYS[i], lives, content) end
end
redis.call('HSET', KEYS[1], ARGV[1], string.sub(ARGV[3], 1, 62) .. struct.pack('>I1I1', move, 0))
redis.call('HDEL', KEYS[1], 'b' .. ARGV[1]) -- the next check adds its size up again
if ARGV[5] ~= '0' then redis.call('HSET', KEYS[1], 'l' .. ARGV[1], ARGV[5]) end
if ARGV[6] ~= '' then redis.call('HSET', KEYS[1], 'd' .. ARGV[1], ARGV[6]) end
if ARGV[4] ~= '' then -- no entry is later than what the user knows as the latest
	local user = redis.call('HGET', KEYS[1], 'u') or string.rep('\0', 64)
	local asec, ansec = struct.unpack('>I5I4', ARGV[4])
	local usec, unsec = struct.unpack('>I5I4', user, 54)
	if asec > usec or asec == usec and ansec > unsec then
		redis.call('HSET', KEYS[1], 'u', string.sub(user, 1, 53) .. ARGV[4] .. string.sub(user, 63))
	end
end
redis.call('DEL', KEYS[3])
return 1

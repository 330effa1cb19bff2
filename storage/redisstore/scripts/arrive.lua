-- Puts a key that has moved to its new user, unless it is there already or was deleted.
--
-- KEYS  1 counters of the user it comes to  2 the mark of a deleted user  3 of a deleted
--       key  4 its history  5, 6 its request ids
-- ARGV  1 Seq of the key  2 the number of the move, modulo 256  3 its counter, as it left
--       4… history and request ids, each with how long it lives in milliseconds

if redis.call('EXISTS', KEYS[2], KEYS[3]) > 0 then return 0 end
local move = tonumber(ARGV[2])
local here = redis.call('HGET', KEYS[1], ARGV[1])
if here and struct.unpack('>I1', here, 63) == move then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], string.sub(ARGV[3], 1, 62) .. struct.pack('>I1I1', move, 0))
for i = 4, 6 do
	local content, lives = ARGV[2 * i - 4], ARGV[2 * i - 3]
	redis.call('UNLINK', KEYS[i])
	if content and content ~= '' then redis.call('RESTORE', KEYS[i], lives, content) end
end
return 1

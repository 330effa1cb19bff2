-- Ends a move where it began.
--
-- KEYS  1 counters of the user it leaves  2 its mark
--       3… what it has beside its counter
-- ARGV  1 Seq of the key  2 the number of the move, modulo 256
--       3 for how long the mark is left, milliseconds

local counter = redis.call('HGET', KEYS[1], ARGV[1])
if not counter then return 0 end
local moves, leaving = struct.unpack('>I1I1', counter, 63)
if leaving == 0 or (moves + 1) % 256 ~= tonumber(ARGV[2]) then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1], 'l' .. ARGV[1], 'd' .. ARGV[1], 'b' .. ARGV[1])
redis.call('UNLINK', unpack(KEYS, 3))
markLeft(KEYS[2], tonumber(ARGV[2]), ARGV[3])
return 1

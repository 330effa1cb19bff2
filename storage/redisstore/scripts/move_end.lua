-- Last step of a move: deletes the frozen counter and data of a key in the slot of its old user.
--
-- Reads:  the counter
-- Writes: deletes the counter, its fields and data keys; writes a tombstone with the number of the move
--
-- KEYS  1 hash of counters of the old user  2 tombstone of the key there
--       3… data keys of the key: history, past days, days of meters, hours, request ids
-- ARGV  1 Seq of the key  2 number of the move, modulo 256
--       3 lifetime of the tombstone in milliseconds
--
-- Returns 1, or 0 if the counter is not frozen for this move.

local counter = redis.call('HGET', KEYS[1], ARGV[1])
if not counter then return 0 end
local moves, form = string.byte(counter, moves_at, form_at)
if form % 2 == 0 or (moves + 1) % 256 ~= tonumber(ARGV[2]) then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1], 'l' .. ARGV[1], 'd' .. ARGV[1], 'b' .. ARGV[1], 'm' .. ARGV[1], 'r' .. ARGV[1], 'k' .. ARGV[1], 'e' .. ARGV[1])
redis.call('UNLINK', unpack(KEYS, 3))
markLeft(KEYS[2], tonumber(ARGV[2]), ARGV[3])
return 1

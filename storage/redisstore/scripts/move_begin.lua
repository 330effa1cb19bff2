-- First step of a move: freezes the counter of a key in the slot of its old user, and returns its data.
--
-- Reads:  the counter and its fields, the latest entry in the user's counter, the data keys, open holds
-- Writes: the frozen flag of the counter, open holds; a tombstone if there is no counter
--
-- KEYS  1 hash of counters of the old user  2 tombstone of the key there
--       3… data keys of the key: history, past days, days of meters, hours, request ids
-- ARGV  1 Seq of the key  2 number of the move, from 1, modulo 256
--       3 lifetime of the tombstone in milliseconds
--
-- Returns the counter, the time of the user's latest entry, each field of MOVED, '' for none, then DUMP and PTTL of each
-- data key. Returns nothing if there is no counter, or that of a later move.

redis.call('HDEL', KEYS[1], '') -- first, since a deletion allows the next writes even if memory is full
local move = tonumber(ARGV[2])
local counter = redis.call('HGET', KEYS[1], ARGV[1])
if not counter then
	markLeft(KEYS[2], move, ARGV[3])
	return {}
end
local moves, form = string.byte(counter, moves_at, form_at)
if (moves + 1) % 256 ~= move then return {} end
endHolds(ARGV[1])
counter = string.sub(counter, 1, moves_at) .. string.char(form - form % 2 - (form >= 8 and 8 or 0) + 1) .. string.sub(counter, usage_at)
redis.call('HSET', KEYS[1], ARGV[1], counter)
local user = redis.call('HGET', KEYS[1], 'u') or ''
local out = {counter, string.sub(user, latest_at, latest_at + 8)}
for _, name in ipairs(MOVED) do out[#out + 1] = redis.call('HGET', KEYS[1], name .. ARGV[1]) or '' end
for i = 3, #KEYS do
	out[#out + 1] = redis.call('DUMP', KEYS[i]) or ''
	out[#out + 1] = redis.call('PTTL', KEYS[i])
end
return out

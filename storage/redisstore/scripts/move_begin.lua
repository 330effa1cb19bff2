-- Begins to move a key to another user: it counts no more here. Returns all of it: its
-- counter, what is the latest in histories here, how late entries of its own are, the tally
-- of its denials, and what it has beside its counter with how long each lives; nothing when
-- it is not here, or here again after a later move.
--
-- KEYS  1 counters of the user it leaves  2 its mark
--       3… what it has beside its counter: see names.having
-- ARGV  1 Seq of the key  2 the number of the move, from 1, modulo 256
--       3 for how long the mark is left, milliseconds

redis.call('HDEL', KEYS[1], '') -- the first write: a full memory is not in its way
local move = tonumber(ARGV[2])
local counter = redis.call('HGET', KEYS[1], ARGV[1])
if not counter then
	markLeft(KEYS[2], move, ARGV[3])
	return {}
end
local moves = struct.unpack('>I1', counter, 63)
if (moves + 1) % 256 ~= move then return {} end
counter = string.sub(counter, 1, 63) .. '\1'
redis.call('HSET', KEYS[1], ARGV[1], counter)
local user = redis.call('HGET', KEYS[1], 'u') or ''
local out = {counter, string.sub(user, 54, 62), redis.call('HGET', KEYS[1], 'l' .. ARGV[1]) or '0',
	redis.call('HGET', KEYS[1], 'd' .. ARGV[1]) or ''}
for i = 3, #KEYS do
	out[#out + 1] = redis.call('DUMP', KEYS[i]) or ''
	out[#out + 1] = redis.call('PTTL', KEYS[i])
end
return out

-- Moves the end of an open hold.
--
-- Reads:  the hold, the open holds of both counters
-- Writes: the same
--
-- KEYS  1 hash of counters  2 the hold
-- ARGV  1 Seq of the key, or u  2 1 if the counter of the user has counted the hold  3 random part of its id
--       4 the present, Unix milliseconds  5 its new end  6 its new lifetime in milliseconds
--
-- Returns 1, 2 if the hold ends later anyway, or 0 if it is not open.

local hold, list = redis.call('GET', KEYS[2]), redis.call('HGET', KEYS[1], 'o' .. ARGV[1]) or ''
local at = findHold(list, ARGV[3])
local ends = at and struct.unpack('>I6', list, at)
if not hold or not at or ends <= tonumber(ARGV[4]) then return 0 end
if ends >= tonumber(ARGV[5]) then return 2 end
for i = 1, ARGV[2] == '1' and ARGV[1] ~= 'u' and 2 or 1 do
	local field = i == 1 and ARGV[1] or 'u'
	list = redis.call('HGET', KEYS[1], 'o' .. field) or ''
	at = findHold(list, ARGV[3])
	if at then
		list = string.sub(list, 1, at - 1) .. string.sub(list, at + OPEN)
		redis.call('HSET', KEYS[1], 'o' .. field, addHold(list, tonumber(ARGV[5]), ARGV[3]))
	end
end
redis.call('SET', KEYS[2], string.sub(hold, 1, 1) .. struct.pack('>I6', ARGV[5]) .. string.sub(hold, 8), 'PX', ARGV[6])
return 1

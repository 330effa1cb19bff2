-- Returns the mark of a master, and adds a beat when one is due: see mark.go.
--
-- Reads:  the mark and its beats, the time of the server
-- Writes: the id if it is missing; a beat when one is due; a loss if one is given
--
-- KEYS  1 the mark, a hash: id, was, lost  2 its beats, a list, newest last
-- ARGV  1 random text for a new id or beat  2 milliseconds between two beats
--       3 how many beats are kept, 0 to add none
--       4 description of a loss, '' for none  5 the id before the loss
--
-- Returns id, was and lost, each '' when the field is missing, then the beats unless none are kept.

local id, was, lost = unpack(redis.call('HMGET', KEYS[1], 'id', 'was', 'lost'))
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local keep, due = tonumber(ARGV[3]), false
if keep > 0 then
	local latest = redis.call('LINDEX', KEYS[2], -1)
	due = not latest or now - tonumber(string.match(latest, '^%d+')) >= tonumber(ARGV[2])
end

-- First, since a deletion allows the next writes even if memory is full
if due or not id or ARGV[4] ~= '' then redis.call('HDEL', KEYS[1], '') end
if not id then
	id = ARGV[1]
	redis.call('HSET', KEYS[1], 'id', id)
end
if ARGV[4] ~= '' and not lost then
	was, lost = ARGV[5], ARGV[4]
	redis.call('HSET', KEYS[1], 'was', was, 'lost', lost)
end
if due then
	redis.call('RPUSH', KEYS[2], string.format('%.0f', now) .. '-' .. ARGV[1])
	redis.call('LTRIM', KEYS[2], -keep, -1)
end
local out = {id, was or '', lost or ''}
if keep > 0 then
	for _, beat in ipairs(redis.call('LRANGE', KEYS[2], 0, -1)) do out[#out + 1] = beat end
end
return out

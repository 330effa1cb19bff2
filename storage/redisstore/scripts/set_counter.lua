-- Imports a counter: it replaces the usage, the times of the last use and of the last denial, and the denials without history
-- entry. It keeps the allowed requests of the replaced counter's day if that is another day.
--
-- Reads:  the counter, and past days
-- Writes: the counter, its other meters, the denials of a user, past days, and hours: the imported usage counts in no hour
--
-- KEYS  1 hash of counters
-- ARGV  1 Seq of the key, or u  2 the counter  3 its other meters, '' for none  4 its day, 0 for none
--       5 second of its last denial, 0 for none
--
-- Returns 1, or 0 if there is no counter.

local field, new = ARGV[1], ARGV[2]
local counter = redis.call('HGET', KEYS[1], field)
if not counter then return 0 end
local used, number, day, hour = todayOf(counter, field)
local form, today = string.byte(counter, form_at), tonumber(ARGV[4])
keepHour(field, day, number, '', hour, used)
if day ~= today then
	local value, latest = findPast(redis.call('GET', string.sub(KEYS[1], 1, -2) .. 't:' .. field) or '', today, number)
	if value then keepHour(field, today, number, '', latest, value) end -- the imported counter is of a day among the past days
	if used > 0 then addDay(struct.pack(DAY_COUNT, day, used, hour), 0, day + 1, NO_HOUR, field, number) end
end
keepHour(field, today, number, '', NO_HOUR, (todayOf(new, field)))
local own, refused = string.sub(counter, latest_at, moves_at), tonumber(ARGV[5])
if field == 'u' then
	local denials = redis.call('HGET', KEYS[1], 'nu')
	local dsec, _, dday, recorded = struct.unpack(KEYLESS, denials or struct.pack(KEYLESS, 0, 0, 0, 0))
	if dsec ~= refused then redis.call('HSET', KEYS[1], 'nu', struct.pack(KEYLESS, refused, 0, dday, recorded)) end
elseif struct.unpack('>I4', own) ~= refused then
	own = struct.pack('>I4I1', refused, 0) .. string.sub(own, 6)
end
redis.call('HSET', KEYS[1], field, string.sub(new, 1, latest_at - 1) .. own
	.. string.char(string.byte(new, form_at) + form % 2 + (form >= 8 and 8 or 0)) .. string.sub(new, usage_at))
if ARGV[3] ~= '' then redis.call('HSET', KEYS[1], 'm' .. field, ARGV[3]) else redis.call('HDEL', KEYS[1], 'm' .. field) end
return 1

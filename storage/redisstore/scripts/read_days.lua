-- Returns the counter and the days of a key or user, and with KEYS[4] also the hours.
--
-- Reads:  fields of the hash of counters, the past days, the days of meters, hours
-- Writes: nothing
--
-- KEYS  1 hash of counters  2 past days, a string  3 days of meters, a hash  4 hours, a list; only if hours are read
-- ARGV  1 number of dates, 0 to read all days  2… the dates  then fields: the counter, the other day fields, the other meters, the newest day
--       with hours
--
-- Returns the fields, then the past days, then dates and the days of meters, then the hours; nil for each that is missing. The past days are nil if
-- ARGV lists dates and hours are not read.

local dates = tonumber(ARGV[1])
local out = redis.call('HMGET', KEYS[1], unpack(ARGV, 2 + dates))
out[#out + 1] = (dates == 0 or KEYS[4]) and redis.call('GET', KEYS[2]) or false
if dates == 0 then
	out[#out + 1] = redis.call('HGETALL', KEYS[3])
else
	local days = {}
	for i = 2, 1 + dates do
		days[#days + 1] = ARGV[i]
		days[#days + 1] = redis.call('HGET', KEYS[3], ARGV[i]) or ''
	end
	out[#out + 1] = days
end
if KEYS[4] then out[#out + 1] = redis.call('LRANGE', KEYS[4], 0, -1) end
return out

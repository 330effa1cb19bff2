-- Returns how many resources an index has, and the records of some of them in order.
--
-- KEYS  1 the index, a sorted set
-- ARGV  1 what comes before an id in the name of a record, in the same slot
--       2 resources before the page  3 on it

local n = redis.call('ZCARD', KEYS[1])
local first, size = tonumber(ARGV[2]), tonumber(ARGV[3])
local out = {n}
if first < n and size > 0 then
	for _, id in ipairs(redis.call('ZRANGE', KEYS[1], first, first + size - 1)) do
		out[#out + 1] = redis.call('GET', ARGV[1] .. id)
	end
end
return out

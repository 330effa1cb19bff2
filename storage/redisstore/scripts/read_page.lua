-- Returns the size of an index, and a page of the records of its resources.
--
-- Reads:  the index, and the records of the page
-- Writes: nothing
--
-- KEYS  1 the index, a sorted set
-- ARGV  1 key of a record without its id, in the same slot
--       2 resources before the page  3 size of the page
--
-- Returns the size, then the records; nil for a missing record.

local n = redis.call('ZCARD', KEYS[1])
local first, size = tonumber(ARGV[2]), tonumber(ARGV[3])
local out = {n}
if first < n and size > 0 then
	for _, id in ipairs(redis.call('ZRANGE', KEYS[1], first, first + size - 1)) do
		out[#out + 1] = redis.call('GET', ARGV[1] .. id)
	end
end
return out

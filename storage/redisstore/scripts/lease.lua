-- Takes, renews or gives back a lease.
--
-- Reads:  the lease
-- Writes: the same
--
-- KEYS  1 the lease
-- ARGV  1 the holder  2 its duration in milliseconds, 0 to give the lease back
--
-- Returns 1 if the holder has the lease, else 0.

local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then
	redis.call('DEL', KEYS[1])
	return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1

-- Returns how many entries of a history are later than a time, and a page of them,
-- newest first.
--
-- KEYS  1 the history, a list, newest first
-- ARGV  1, 2 seconds and nanoseconds of the time  3 entries before the page  4 on it

local sec, nsec = tonumber(ARGV[1]), tonumber(ARGV[2])
local offset, size = tonumber(ARGV[3]), tonumber(ARGV[4])

local function head(i)
	return struct.unpack(HEAD, redis.call('LINDEX', KEYS[1], i))
end

local function later(s, n, than_s, than_n)
	return s > than_s or s == than_s and n > than_n
end

-- The latest time up to each entry only grows, so that it can be searched for: before
-- the result all are later than the time.
local function search(n, s, ns)
	local low, high = 0, n
	while low < high do
		local middle = math.floor((low + high) / 2)
		local _, _, _, lsec, lnsec = head(middle)
		if later(lsec, lnsec, s, ns) then low = middle + 1 else high = middle end
	end
	return low
end

local n = redis.call('LLEN', KEYS[1])
if n == 0 then return {0} end
local live = search(n, sec, nsec) -- from here on all are over
local late = select(6, head(0)) / 1000
local sure = live                 -- before it none is over
local mixed = {}                  -- between them, those that are not
if late > 0 then
	local s = sec + math.floor(late) + 1
	sure = search(live, s, nsec)
	for i = sure, live - 1 do
		local entry = redis.call('LINDEX', KEYS[1], i)
		local _, esec, ensec = struct.unpack(HEAD, entry)
		if later(esec, ensec, sec, nsec) then mixed[#mixed + 1] = entry end
	end
end

local out = {sure + #mixed}
local last = math.min(offset + size, out[1])
if offset < sure and last > offset then
	for _, entry in ipairs(redis.call('LRANGE', KEYS[1], offset, math.min(last, sure) - 1)) do
		out[#out + 1] = entry
	end
end
for i = math.max(offset, sure) + 1, last do
	out[#out + 1] = mixed[i - sure]
end
return out

-- Returns how many entries of a history are later than a time, and a page of them,
-- newest first.
--
-- KEYS  1 counters of the user  2 the history, a list, newest last
-- ARGV  1, 2 seconds and nanoseconds of the time  3 entries before the page  4 on it
--       5 field of how many seconds an entry may be earlier than one before it

local sec, nsec = tonumber(ARGV[1]), tonumber(ARGV[2])
local offset, size = tonumber(ARGV[3]), tonumber(ARGV[4])

-- Entries are counted from the newest, which is 0.
local function at(i)
	local _, esec, ensec = struct.unpack(HEAD, redis.call('LINDEX', KEYS[2], -1 - i))
	return esec, ensec
end

local function later(esec, ensec, than)
	return esec > than or esec == than and ensec > nsec
end

local n = redis.call('LLEN', KEYS[2])
if n == 0 then return {0} end
local low, high = 0, n
while low < high do
	local middle = math.floor((low + high) / 2)
	local esec, ensec = at(middle)
	if later(esec, ensec, sec) then low = middle + 1 else high = middle end
end

-- Were the entries in order, all before low were later than the time, and no others. Those
-- that came late are near it: further away than what is late at most there are none.
local late = tonumber(redis.call('HGET', KEYS[1], ARGV[5]) or 0)
local sure, over, mixed = low, low, {}
if late > 0 then
	while sure > 0 do
		local esec, ensec = at(sure - 1)
		if later(esec, ensec, sec + late) then break end
		sure = sure - 1
	end
	while over < n do
		local esec, ensec = at(over)
		if not later(esec, ensec, sec - late) then break end
		over = over + 1
	end
	for i = sure, over - 1 do
		local esec, ensec = at(i)
		if later(esec, ensec, sec) then mixed[#mixed + 1] = i end
	end
end

local out = {sure + #mixed}
local last = math.min(offset + size, out[1])
if offset < sure and last > offset then
	local some = redis.call('LRANGE', KEYS[2], -math.min(last, sure), -1 - offset)
	for i = #some, 1, -1 do out[#out + 1] = some[i] end
end
for i = math.max(offset, sure) + 1, last do
	out[#out + 1] = redis.call('LINDEX', KEYS[2], -1 - mixed[i - sure])
end
return out

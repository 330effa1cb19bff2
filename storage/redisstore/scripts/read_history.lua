-- Returns the number of entries in a history that are later than a time, and a page of them, newest first.
--
-- Reads:  the history and its lateness field
-- Writes: nothing
--
-- KEYS  1 hash of counters  2 history, a list, newest last
-- ARGV  1, 2 seconds and nanoseconds of the time  3 entries before the page  4 size of the page
--       5 field with the lateness of the history
--
-- Returns the number, then the entries.

local sec, nsec = tonumber(ARGV[1]), tonumber(ARGV[2])
local offset, size = tonumber(ARGV[3]), tonumber(ARGV[4])

-- Entries are numbered from the newest, which is 0. isLater compares entry i.
local function later(entry, than)
	local _, esec, ensec = struct.unpack(HEAD, entry)
	return esec > than or esec == than and ensec > nsec
end

local function isLater(i, than) return later(redis.call('LINDEX', KEYS[2], -1 - i), than) end

-- near returns entry i from a chunk of the list. It is fast for successive entries.
local CHUNK = 256
local chunk, first = {}, 0
local function near(i)
	if i < first or i >= first + #chunk then
		first = i - i % CHUNK
		chunk = redis.call('LRANGE', KEYS[2], -first - CHUNK, -1 - first)
	end
	return chunk[#chunk - (i - first)]
end

local n = redis.call('LLEN', KEYS[2])
if n == 0 then return {0} end
local low, high = 0, n
while low < high do
	local middle = math.floor((low + high) / 2)
	if isLater(middle, sec) then low = middle + 1 else high = middle end
end

-- If the entries were in order, exactly those before low would be later than the time. Late entries are
-- close to low: no further away than the lateness of the history.
local small, large = lateness(redis.call('HGET', KEYS[1], ARGV[5]))
local late = math.max(small, large)
local sure, over = low, low
if late > 0 then
	while sure > 0 and not later(near(sure - 1), sec + late) do sure = sure - 1 end
	while over < n and later(near(over), sec - late) do over = over + 1 end
end

local out, total, last = {0}, sure, math.min(offset + size, sure)
if last > offset then
	local some = redis.call('LRANGE', KEYS[2], -last, -1 - offset)
	for i = #some, 1, -1 do out[#out + 1] = some[i] end
end
for i = sure, over - 1 do
	if later(near(i), sec) then
		if total >= offset and total < offset + size then out[#out + 1] = near(i) end
		total = total + 1
	end
end
out[1] = total
return out

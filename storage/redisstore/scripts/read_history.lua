-- Returns the number of entries in a history that are later than a time, and a page of them, newest first.
--
-- Reads:  the history and its lateness field; for a snapshot: the open snapshot and the before images
-- Writes: nothing
--
-- KEYS  1 hash of counters  2 history, a list, newest last
--       for a snapshot: 3 before images  4 the history if it was deleted since the instant
-- ARGV  1, 2 seconds and nanoseconds of the time  3 entries before the page  4 size of the page
--       5 field with the lateness of the history  for a snapshot: 6 its id  7 Seq of the key, or u
--
-- Returns the number, then the entries. Returns -1 if the snapshot cannot be read.

local sec, nsec = tonumber(ARGV[1]), tonumber(ARGV[2])
local offset, size = tonumber(ARGV[3]), tonumber(ARGV[4])

-- A snapshot has the entries before the newest `since` ones.
local list, of, since = KEYS[2], KEYS[1], 0
if ARGV[6] then
	if not isOpen(ARGV[6], KEYS[3]) then return {-1} end
	local counter, appended, left = unpack(redis.call('HMGET', KEYS[3], ARGV[7], 'n' .. ARGV[7], 'g' .. ARGV[7]))
	if counter == '' then return {0} end
	since = tonumber(appended) or 0
	if left then
		list, of, since = KEYS[4], KEYS[3], 0
		if redis.call('LLEN', list) ~= tonumber(left) then return {-1} end
	end
end

-- Entries are numbered from the newest, which is 0. isLater compares entry i.
local function later(entry, than)
	local _, esec, ensec = struct.unpack(HEAD, entry)
	return esec > than or esec == than and ensec > nsec
end

local function isLater(i, than) return later(redis.call('LINDEX', list, -1 - since - i), than) end

-- near returns entry i from a chunk of the list. It is fast for successive entries.
local CHUNK = 256
local chunk, first = {}, 0
local function near(i)
	if i < first or i >= first + #chunk then
		first = i - i % CHUNK
		chunk = redis.call('LRANGE', list, -since - first - CHUNK, -1 - since - first)
	end
	return chunk[#chunk - (i - first)]
end

local n = redis.call('LLEN', list) - since
if n <= 0 then return {0} end
local low, high = 0, n
while low < high do
	local middle = math.floor((low + high) / 2)
	if isLater(middle, sec) then low = middle + 1 else high = middle end
end

-- If the entries were in order, exactly those before low would be later than the time. Late entries are
-- close to low: no further away than the lateness of the history.
local small, large = lateness(redis.call('HGET', of, ARGV[5]))
local late = math.max(small, large)
local sure, over = low, low
if late > 0 then
	while sure > 0 and not later(near(sure - 1), sec + late) do sure = sure - 1 end
	while over < n and later(near(over), sec - late) do over = over + 1 end
end

local out, total, last = {0}, sure, math.min(offset + size, sure)
if last > offset then
	local some = redis.call('LRANGE', list, -since - last, -1 - since - offset)
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

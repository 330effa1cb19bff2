-- Appends imported entries to the histories of a user and of its keys. It counts nothing.
--
-- Reads:  the counters of the user and of the keys
-- Writes: the histories, their lateness and size fields, and the latest entry in the user's counter
--
-- KEYS  1 hash of counters  2 history of the user  3… histories of the keys
-- ARGV  1 maximum number of entries of a history  2… Seq of each key in KEYS 3…
--       then each entry: position of its key (2 bytes), HEAD (shared.lua), rest of the entry
--
-- Returns 1, or 0 without appending if a counter is missing or about to move.

local cap, n = tonumber(ARGV[1]), #KEYS - 2
for i = 1, n do
	local counter = redis.call('HGET', KEYS[1], ARGV[1 + i])
	if not counter or string.byte(counter, 64) == 1 then return 0 end
end
local user = redis.call('HGET', KEYS[1], 'u')
if not user then return 0 end
local usec, unsec = struct.unpack(LATEST, user, latest_at)

local before = {}
for i = n + 2, #ARGV do
	local number, denied, sec, nsec, ends, rest = struct.unpack('>I2I1I5I4I4', ARGV[i])
	local entry = struct.pack(HEAD, denied, sec, nsec, ends) .. string.sub(ARGV[i], rest)
	local lsec, lnsec = usec, unsec
	if sec > usec or sec == usec and nsec > unsec then usec, unsec = sec, nsec end
	append(KEYS[2], entry, sec, nsec, lsec, lnsec, lsec, ends, cap, 'l')
	append(KEYS[2 + number], entry, sec, nsec, lsec, lnsec, before[number] or 0, ends, cap, 'l' .. ARGV[1 + number])
	before[number] = sec
end

redis.call('HSET', KEYS[1], 'u', string.sub(user, 1, latest_at - 1) .. struct.pack(LATEST, usec, unsec) .. string.sub(user, latest_at + 9))
return 1

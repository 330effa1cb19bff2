-- Imports entries of one history. It counts nothing.
--
-- Reads:  the counter, the counter of the user, the last entries of the history
-- Writes: the history, its lateness and size fields, and the latest entry in the user's counter
--
-- KEYS  1 hash of counters  2 history
-- ARGV  1 Seq of the key, or u  2 1 to remove the entries before  3 maximum number of entries of the history
--       4… the entries, oldest first
--
-- Returns 1, or 0 without importing if a counter is missing or about to move.

local field, cap = ARGV[1], tonumber(ARGV[3])
local counter, user = unpack(redis.call('HMGET', KEYS[1], field, 'u'))
if not counter or not user or field ~= 'u' and string.byte(counter, form_at) % 2 == 1 then return 0 end

local late = 'l' .. field
if ARGV[2] == '1' then
	redis.call('UNLINK', KEYS[2])
	redis.call('HDEL', KEYS[1], late)
end

-- lsec and lnsec are the latest time in the history, before the second of its last entry. An entry may be
-- late, so the latest one need not be the last. An entry is less than `small` seconds later than each entry
-- after it, or not later than `till`.
local before, lowest = 0, nil
local small, _, lsec = lateness(redis.call('HGET', KEYS[1], late))
local lnsec = lsec > 0 and 999999999 or 0
for i = 1, redis.call('LLEN', KEYS[2]) do
	local _, sec, nsec = struct.unpack(HEAD, redis.call('LINDEX', KEYS[2], -i))
	if i == 1 then before = sec end
	if sec > lsec or sec == lsec and nsec > lnsec then lsec, lnsec = sec, nsec end
	lowest = math.min(lowest or sec, sec)
	if lowest + small <= lsec then break end
end

for i = 4, #ARGV do
	local _, sec, nsec, ends = struct.unpack(HEAD, ARGV[i])
	append(KEYS[2], ARGV[i], sec, nsec, lsec, lnsec, before, ends, cap, late)
	if sec > lsec or sec == lsec and nsec > lnsec then lsec, lnsec = sec, nsec end
	before = sec
end

local usec, unsec = struct.unpack(LATEST, user, latest_at)
if lsec > usec or lsec == usec and lnsec > unsec then
	user = string.sub(user, 1, latest_at - 1) .. struct.pack(LATEST, lsec, lnsec) .. string.sub(user, latest_at + 9)
	redis.call('HSET', KEYS[1], 'u', user)
end
return 1

-- Renews the lease of a snapshot, or closes the snapshot, in the slot of the account or of the registry.
--
-- Reads:  the open snapshots, the time of the server
-- Writes: the lease of the snapshot; or deletes the snapshot, its before images and its indexes of removed resources
--
-- KEYS  1 open snapshots  2 before images  3… indexes of removed resources
-- ARGV  1 id of the account  2 id of the snapshot  3 microseconds from now to the end of the lease, '' to close
--
-- Returns the time of the server in microseconds, or 0 if the snapshot is not open.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local lines, found = '', false
for line in string.gmatch(redis.call('GET', KEYS[1]) or '', '[^\n]+\n') do
	local account, id, times = string.match(line, '^(%S+) (%S+) (%d+ %d+ %d+)')
	if account ~= ARGV[1] or id ~= ARGV[2] then
		lines = lines .. line
	else
		found = true
		if ARGV[3] ~= '' then
			lines = lines .. account .. ' ' .. id .. ' ' .. times .. ' ' .. string.format('%.0f\n', now + ARGV[3])
		end
	end
end
if not found then return 0 end
redis.call('HDEL', KEYS[2], '') -- first, since a deletion allows the next writes even if memory is full
if ARGV[3] == '' then redis.call('UNLINK', unpack(KEYS, 2)) end
if lines == '' then
	redis.call('DEL', KEYS[1])
else
	redis.call('SET', KEYS[1], lines, 'PX', redis.call('PTTL', KEYS[1]))
end
return string.format('%.0f', now)

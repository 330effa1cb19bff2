-- Opens a snapshot of an account in the slot of its resources, or in that of the registry.
--
-- Reads:  the open snapshots, the time of the server
-- Writes: the open snapshots without ended ones; an empty hash of before images, and empty indexes of removed resources
--
-- KEYS  1 open snapshots  2 before images  3… indexes of removed resources
-- ARGV  1 id of the account  2 id of the snapshot
--       3 its instant in microseconds, '' for one to choose  4 microseconds from now to the chosen instant
--       5 microseconds before the instant from which transactions wait
--       6 microseconds from the instant to the end of the snapshot  7 microseconds from now to the end of the lease,
--         0 to replace a snapshot that has a lease: the slot of the account has decided already
--
-- Each line of the open snapshots: account, id, instant, time from which transactions wait, end, end of the lease.
--
-- Returns the time of the server, the instant, the time from which transactions wait, and the end, in microseconds. Returns
-- nothing if another snapshot of the account has a lease.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function number(n) return string.format('%.0f', n) end

local lines = ''
for line in string.gmatch(redis.call('GET', KEYS[1]) or '', '[^\n]+\n') do
	local account, id, till, lease = string.match(line, '^(%S+) (%S+) %d+ %d+ (%d+) (%d+)')
	if account == ARGV[1] then
		if id ~= ARGV[2] and ARGV[7] ~= '0' and tonumber(lease) > now then return {} end
	elseif tonumber(till) > now then
		lines = lines .. line
	end
end

redis.call('UNLINK', unpack(KEYS, 2)) -- first, since a deletion allows the next writes even if memory is full
local instant = tonumber(ARGV[3]) or now + tonumber(ARGV[4])
local waits, till = instant - tonumber(ARGV[5]), instant + tonumber(ARGV[6])
local lives = number((till - now) / 1000)
local line = table.concat({ARGV[1], ARGV[2], number(instant), number(waits), number(till), number(now + ARGV[7])}, ' ')
redis.call('SET', KEYS[1], lines .. line .. '\n', 'PX', lives)
redis.call('HSET', KEYS[2], 'z', ARGV[2])
redis.call('PEXPIRE', KEYS[2], lives)
for i = 3, #KEYS do
	redis.call('ZADD', KEYS[i], '-inf', '')
	redis.call('PEXPIRE', KEYS[i], lives)
end
return {number(now), number(instant), number(waits), number(till)}

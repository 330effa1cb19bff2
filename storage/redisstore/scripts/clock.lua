-- Returns the time of the server in microseconds.
--
-- KEYS  1 any key of the server

local time = redis.call('TIME')
return string.format('%.0f', time[1] * 1000000 + time[2])

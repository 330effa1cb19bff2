-- The day of a counter, for the scripts of an import.
--
-- Reads:  nothing
-- Writes: nothing

-- todayOf returns the usage of a counter on its latest day, the index of this number, the day, and its latest hour.
local function todayOf(counter, field)
	local used, now
	if string.byte(counter, form_at) % 4 >= 2 then
		used, now = struct.unpack('>I7I5', counter, #counter - 11)
	else
		used, now = struct.unpack('>I5', counter, #counter - 4), struct.unpack('>I5', counter)
	end
	return used, field == 'u' and SHARED_ALLOWED or ALLOWED, math.floor(now / 86400), math.floor(now / 3600) % 24
end

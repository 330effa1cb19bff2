-- Deletes the before images of a user, for the scripts that open and close a snapshot.
--
-- Reads:  the before images
-- Writes: deletes the before images, and the deleted histories that they name

-- dropImages deletes a hash of before images, and its histories zh and zh:<seq>.
local function dropImages(name)
	local cursor = '0'
	repeat
		local page = redis.call('HSCAN', name, cursor, 'MATCH', 'g*', 'COUNT', 1000)
		cursor = page[1]
		for i = 1, #page[2], 2 do
			local field = string.sub(page[2][i], 2)
			redis.call('UNLINK', name .. (field == 'u' and 'h' or 'h:' .. field))
		end
	until cursor == '0'
	redis.call('UNLINK', name)
end


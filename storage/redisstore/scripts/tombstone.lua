-- What the scripts of a move share; it stands before them. The mark of a key says with a
-- user that it was deleted there, by '', or has left, by the number of the move.

-- hasLeft reports whether a key that comes by a move was deleted, or has left since.
local function hasLeft(mark, move)
	local left = redis.call('GET', mark)
	return left and (left == '' or (tonumber(left) - move) % 256 < 128)
end

-- markLeft notes that a key has left, unless the mark says that it did so later.
local function markLeft(mark, move, lives)
	if not hasLeft(mark, move) then redis.call('SET', mark, move, 'PX', lives) end
end

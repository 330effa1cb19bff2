-- Tombstones, for the scripts of a move. The tombstone of a key in the slot of a user is '' if the key was
-- deleted there, and the number of the move with which it has left.
--
-- Reads:  the tombstone
-- Writes: the tombstone

-- The fields that move with a counter, before its Seq: the lateness of the history, the DAY_COUNT of denials, the other
-- meters, both buckets, the newest day with hours.
local MOVED = {'l', 'd', 'm', 'r', 'k', 'e'}

-- hasLeft reports whether the key was deleted, or has left with this move or a later one.
local function hasLeft(tombstone, move)
	local left = redis.call('GET', tombstone)
	return left and (left == '' or (tonumber(left) - move) % 256 < 128)
end

-- markLeft writes the tombstone of a move, unless that of a later one exists.
local function markLeft(tombstone, move, lives)
	if not hasLeft(tombstone, move) then redis.call('SET', tombstone, move, 'PX', lives) end
end

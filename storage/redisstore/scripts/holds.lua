-- Open holds, for several scripts. The field o and the Seq of a key, or ou, lists the open holds that a counter has counted, the first to
-- expire first. An element of a list has OPEN bytes: the end of the hold in Unix milliseconds, and the random part of its id.
--
-- Reads:  endHolds: the lists and the existence of the holds; changePast: past days; changedHour, changePast: hours; findHold, addHold, unlist, secondOf: nothing
-- Writes: unlist: the list; endHolds: the lists and the holds; changePast: past days; changedHour, changePast: hours; findHold, addHold, secondOf: nothing

local OPEN = 30

-- findHold returns the position of a hold in a list, nil if the list does not have the hold.
local function findHold(list, random)
	for at = 1, #list, OPEN do
		if string.sub(list, at + 6, at + 29) == random then return at end
	end
end

-- addHold returns a list with another hold, in the order of bytes.
local function addHold(list, ends, random)
	local at = #list + 1
	local hold = struct.pack('>I6', ends) .. random
	while at > 1 and string.sub(list, at - OPEN, at - 1) > hold do at = at - OPEN end
	return string.sub(list, 1, at - 1) .. hold .. string.sub(list, at)
end

-- unlist removes a hold from the list of a counter, and returns the counter.
local function unlist(counter, field, list, at)
	list = string.sub(list, 1, at - 1) .. string.sub(list, at + OPEN)
	if list ~= '' then
		redis.call('HSET', KEYS[1], 'o' .. field, list)
		return counter
	end
	redis.call('HDEL', KEYS[1], 'o' .. field)
	local form = string.byte(counter, form_at)
	return string.sub(counter, 1, form_at - 1) .. string.char(form - (form >= 8 and 8 or 0)) .. string.sub(counter, usage_at)
end

-- endHolds ends the open holds of a key that is deleted or moves to another user. Their costs stay counted.
local function endHolds(field)
	local list, ofUser = redis.call('HGET', KEYS[1], 'o' .. field), redis.call('HGET', KEYS[1], 'ou') or ''
	if not list or field == 'u' then return end
	redis.call('HDEL', KEYS[1], 'o' .. field)
	for at = 1, #list, OPEN do
		local random = string.sub(list, at + 6, at + 29)
		local name, i = string.sub(KEYS[1], 1, -2) .. 'w:' .. random, findHold(ofUser, random)
		local hold = redis.call('GET', name)
		if hold then redis.call('SET', name, '\3' .. string.sub(hold, 2), 'KEEPTTL') end
		if i then ofUser = string.sub(ofUser, 1, i - 1) .. string.sub(ofUser, i + OPEN) end
	end
	if ofUser == '' then redis.call('HDEL', KEYS[1], 'ou') else redis.call('HSET', KEYS[1], 'ou', ofUser) end
end

-- secondOf returns the second that the windows of a counter contain.
local function secondOf(counter)
	local wide = string.byte(counter, form_at) % 4 >= 2
	return (struct.unpack('>I5', counter, wide and #counter - 4 or 1))
end

-- changedHour adds the difference `by` to an hour of a number of a day. latest is the latest hour of the number. The number itself has changed by `done`,
-- which differs from `by` if a bound of the number has cut off a part. That part belongs to no hour.
local function changedHour(field, date, number, hour, by, done, latest)
	if hour ~= latest then keepHour(field, date, number, '', hour, nil, by) end
	if done ~= by then keepHour(field, date, number, '', NO_HOUR, nil, done - by) end
end

-- changePast adds a difference to a number of a past day, and to an hour of that day unless hour is nil. The number keeps its place among the past days
-- of the field.
local function changePast(field, date, number, by, hour)
	local name = string.sub(KEYS[1], 1, -2) .. 't:' .. field
	local past = redis.call('GET', name) or ''
	local n, latest, at, size = findPast(past, date, number)
	n = n or 0
	local after = math.min(math.max(0, n + by), MOST)
	if hour then changedHour(field, date, number, hour, by, after - n, latest) end
	if not at and by <= 0 then return end
	local bytes = after < 256 and 1 or after < 65536 and 2 or 7
	local head = date * PAST_DAY + (latest or hour) * PAST_HOUR + number * 8 + bytes
	at = at or #past + 1
	past = string.sub(past, 1, at - 1) .. struct.pack('>I4I' .. bytes, head, after) .. string.sub(past, at + (size or 0))
	redis.call('SET', name, past, 'PX', (KEPT + 1) * 86400000)
end

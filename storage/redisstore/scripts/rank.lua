-- Changes the ranking of an account, and returns a page of the ranking: see core.Store.
--
-- Reads:  the ranking
-- Writes: the ranking
--
-- KEYS  1 fills of each counter, a hash  2 counters by their highest fill, a sorted set  3 counters by the first end of a window, a sorted set
--       4 state of the ranking, a hash. KEYS[2] with ':' and a meter has the counters by their highest fill of the meter
-- ARGV  1 the present, Unix seconds  2 maximum number of counters  3 maximum number of counters whose ended windows are removed
--       4 meter of the page, '' for any  5 smallest fill  6 offset  7 size
--       then for each change of a counter: its name, its fills, and raise or replace
--
-- A fill is packed as FILL: meter, period, per cent, end of the window. The fills of a counter are sorted by meter and period.
--
-- Returns the number of counters whose windows have ended, the number of counters on all pages, the time of CompleteRanking in nanoseconds or '', and
-- for each counter of the page its name and its fills.

local FILL, NO_END = '>I1c0I1I4I5', 1099511627775

-- unpackFills returns a list of fills.
local function unpackFills(packed)
	local list, pos = {}, 1
	while packed and pos <= #packed do
		local f = {}
		f.meter, f.period, f.percent, f.ends, pos = struct.unpack(FILL, packed, pos)
		list[#list + 1] = f
	end
	return list
end

local function packFills(list)
	local packed = ''
	for _, f in ipairs(list) do
		packed = packed .. struct.pack(FILL, #f.meter, f.meter, f.period, f.percent, f.ends)
	end
	return packed
end

-- raise adds a fill to a sorted list, as core.RaiseFills does.
local function raise(list, f)
	for i, has in ipairs(list) do
		if has.meter == f.meter and has.period == f.period then
			if f.percent > has.percent or f.ends > has.ends then list[i] = f end
			return
		end
		if has.meter > f.meter or has.meter == f.meter and has.period > f.period then
			table.insert(list, i, f)
			return
		end
	end
	list[#list + 1] = f
end

-- scores returns the highest fill of each meter, and of all meters for ''.
local function scores(list)
	local highest = {}
	for _, f in ipairs(list) do
		highest[f.meter] = math.max(highest[f.meter] or 0, f.percent)
		highest[''] = math.max(highest[''] or 0, f.percent)
	end
	return highest
end

local function setOf(meter) return meter == '' and KEYS[2] or KEYS[2] .. ':' .. meter end

-- set replaces the fills of a counter.
local function set(name, before, after)
	local was, now = scores(before), scores(after)
	for meter in pairs(was) do
		if not now[meter] then redis.call('ZREM', setOf(meter), name) end
	end
	for meter, score in pairs(now) do
		if was[meter] ~= score then redis.call('ZADD', setOf(meter), -score, name) end
	end
	if #after == 0 then
		redis.call('HDEL', KEYS[1], name)
		redis.call('ZREM', KEYS[3], name)
		return
	end
	local first = NO_END
	for _, f in ipairs(after) do first = math.min(first, f.ends) end
	redis.call('HSET', KEYS[1], name, packFills(after))
	if first < NO_END then
		redis.call('ZADD', KEYS[3], first, name)
	else
		redis.call('ZREM', KEYS[3], name)
	end
end

local now, most = tonumber(ARGV[1]), tonumber(ARGV[2])
local ended = redis.call('ZRANGE', KEYS[3], '-inf', now, 'BYSCORE', 'LIMIT', 0, ARGV[3])
for _, name in ipairs(ended) do
	local before, after = unpackFills(redis.call('HGET', KEYS[1], name)), {}
	for _, f in ipairs(before) do
		if f.ends > now then after[#after + 1] = f end
	end
	set(name, before, after)
end

for i = 8, #ARGV, 3 do
	local name, packed, how = ARGV[i], ARGV[i + 1], ARGV[i + 2]
	local present = redis.call('HGET', KEYS[1], name) or ''
	if how == 'raise' then
		local after = unpackFills(present)
		for _, f in ipairs(unpackFills(packed)) do raise(after, f) end
		if packFills(after) ~= present then set(name, unpackFills(present), after) end
	elseif packed ~= present then
		set(name, unpackFills(present), unpackFills(packed))
	end
	if redis.call('ZCARD', KEYS[2]) > most then
		local last = redis.call('ZRANGE', KEYS[2], -1, -1)[1]
		set(last, unpackFills(redis.call('HGET', KEYS[1], last)), {})
		redis.call('HSET', KEYS[4], 'cut', 1)
	end
end
if (#ended > 0 or #ARGV > 7) and redis.call('ZCARD', KEYS[2]) < most / 2 and redis.call('HEXISTS', KEYS[4], 'cut') == 1 then
	redis.call('DEL', KEYS[4])
end

local from = setOf(ARGV[4])
local page = {#ended, redis.call('ZCOUNT', from, '-inf', -tonumber(ARGV[5])), redis.call('HGET', KEYS[4], 'whole') or ''}
for _, name in ipairs(redis.call('ZRANGE', from, '-inf', -tonumber(ARGV[5]), 'BYSCORE', 'LIMIT', ARGV[6], ARGV[7])) do
	page[#page + 1] = name
	page[#page + 1] = redis.call('HGET', KEYS[1], name)
end
return page

-- The script that wrk runs. Arguments: a file of complete requests, each followed by a zero
-- byte. To compare every body: a file with the beginning of each body, and "whole" when the
-- file has the whole body.
local requests, n, at = {}, 0, 0
local threads = {}

function setup(thread)
	threads[#threads + 1] = thread
	thread:set("first", #threads * 7919)
end

local function contents(name)
	local f = assert(io.open(name, "rb"))
	local text = f:read("*a")
	f:close()
	return text
end

function init(args)
	for request in contents(args[1]):gmatch("([^%z]+)%z") do
		n = n + 1
		requests[n] = request
	end
	assert(n > 0, "no requests in " .. args[1])
	at = first % n
	if not args[2] then
		return
	end
	wrong = 0
	local want, whole = contents(args[2]), args[3] == "whole"
	function response(_, _, body)
		if body:sub(1, #want) ~= want or whole and #body ~= #want then
			wrong = wrong + 1
			sample = body
		end
	end
end

function request()
	at = at % n + 1
	return requests[at]
end

function done(summary, latency)
	local e, wrongs = summary.errors, 0
	for _, thread in ipairs(threads) do
		wrongs = wrongs + (tonumber(thread:get("wrong")) or 0)
	end
	local text = 'RESULT {"requests":%d,"microseconds":%d,"bytes":%d,"refused":%d,"broken":%d,"wrong":%d,"p50":%d,"p99":%d}\n'
	io.write(text:format(summary.requests, summary.duration, summary.bytes, e.status,
		e.connect + e.read + e.write + e.timeout, wrongs, latency:percentile(50), latency:percentile(99)))
end

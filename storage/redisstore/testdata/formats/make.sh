#!/bin/bash
# Writes a store of an earlier format, and the answers of the version that wrote it:
#
#	make.sh BINARY FORMAT
#
# format2 was made by the binary of the commit b75f2a9, format3 by that of daf161d, and format4 by that of 10c66c1. FORMAT.aof.gz has the commands of an
# append-only file. FORMAT.answers has a time, the owner's key, the keys, and paths of the REST API with their answers.
set -euo pipefail
binary=$1 format=$2
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d)
redis=16971 site=16972 admin=16973
cleanup() { kill "${server:-}" "${db:-}" 2>/dev/null || true; wait || true; rm -rf "$dir"; }
trap cleanup EXIT
cd "$dir"
redis-server --port $redis --dir "$dir" --appendonly yes --aof-use-rdb-preamble no --save '' >redis.log & db=$!
cat >Caddyfile <<END
{
	admin localhost:$admin
	persist_config off
	storage file_system $dir/caddy
	servers {
		trusted_proxies static private_ranges
	}
	limitkeeper {
		store redis 127.0.0.1:$redis
	}
}
http://127.0.0.1:$site {
	limitkeeper_api
}
END
until redis-cli -p $redis ping >/dev/null 2>&1; do sleep 0.1; done
HOME=$dir "$binary" run --config Caddyfile >server.log 2>&1 & server=$!
api=http://127.0.0.1:$site/functions/v1
until curl -sf -H 'X-Forwarded-Proto: https' $api/health >/dev/null; do sleep 0.1; done
owner=$("$binary" account create acme --address localhost:$admin | grep -o 'lk_[0-9A-Za-z]\{29\}' | head -1)

call() { # METHOD PATH [BODY]
	curl -sS -X "$1" -H 'X-Forwarded-Proto: https' -H "Authorization: Bearer $owner" -H 'Content-Type: application/json' ${3:+-d "$3"} "$api$2"
}
member() { sed -E "s/.*\"$1\":\"?([^\",}]*).*/\\1/"; }
ask() { # KEY ENDPOINT [MORE]
	call POST /validate "{\"api_key\":\"$1\",\"endpoint\":\"$2\",\"method\":\"GET\",\"ip_address\":\"192.0.2.7\"${3:-}}" >/dev/null
}

more=
[ "$format" = format2 ] || more=',"limits":[{"meter":"tokens","max":500,"period":"week"}],"rate":{"requests":1000,"per":"second"}'
pro=$(call POST /plans "{\"name\":\"Pro\",\"max_requests\":40,\"request_period\":\"month\",\"features\":[\"sso\"]$more}" | member id)
day=$(call POST /plans '{"name":"Größe S","max_requests":5,"request_period":"day"}' | member id)
call POST /plans '{"name":"Unused","max_requests":9,"request_period":"year"}' >/dev/null
call POST /users "{\"name\":\"Ann\",\"email\":\"Ann@example.com\",\"plan_id\":\"$pro\",\"metadata\":{\"crm\":7}}" >/dev/null
call POST /users '{"name":"Bob"}' >/dev/null
call POST /users '{"name":"Gone","email":"gone@example.com"}' >/dev/null
secrets=() ids=()
for body in '"user_id":1' "\"user_id\":1,\"plan_id\":\"$day\"" "\"user_id\":2,\"plan_id\":\"$pro\"" "\"user_id\":2,\"plan_id\":\"$day\"" "\"user_id\":3,\"plan_id\":\"$day\""; do
	answer=$(call POST /keys "{\"name\":\"key ${#ids[@]}\",$body,\"metadata\":{\"n\":${#ids[@]}}}")
	secrets+=("$(member api_key <<<"$answer")") ids+=("$(grep -o 'key_[0-9A-Za-z]\{20\}' <<<"$answer" | head -1)")
done
for i in 0 1 2 3 4; do
	for n in 1 2 3 4 5 6 7; do ask "${secrets[$i]}" "/v1/items/$n"; done # keys 1 and 3 are over their limit of 5
	ask "${secrets[$i]}" /v1/retried ',"request_id":"r1"'
	ask "${secrets[$i]}" /v1/retried ',"request_id":"r1"'
done
[ "$format" = format2 ] || {
	ask "${secrets[2]}" /v1/tokens ',"costs":{"requests":2,"tokens":70}'
	call POST "/keys/${ids[2]}/usage/adjust" '{"meter":"tokens","delta":-20,"reason":"a grant"}' >/dev/null
}
call PUT "/keys/${ids[3]}" '{"status":"inactive"}' >/dev/null
ask "${secrets[3]}" /v1/disabled
call POST "/keys/${ids[0]}/regenerate" '{"grace_seconds":3600}' >/dev/null
call PUT "/keys/${ids[1]}" '{"user_id":2}' >/dev/null # moves its counter
ask "${secrets[1]}" /v1/moved
call DELETE "/users/3" >/dev/null
sleep 2 # denials are written soon

{
	echo "time $(date -u +%Y-%m-%dT%H:%M:%SZ)"
	echo "owner $owner"
	for secret in "${secrets[@]}"; do echo "key $secret"; done
	for path in /plans '/users?limit=100' '/keys?limit=100' '/keys?status=inactive' '/keys?user_id=2' '/users?email=ann@example.com' \
		"/plans/$pro/users" "/plans/$pro/usage" "/plans/$day/usage" /users/3 /users/{1,2}/{usage,requests?limit=100,usage/daily} \
		"/keys/${ids[4]}" "/keys/${ids[0]}/"{usage,requests?limit=100,usage/daily} "/keys/${ids[1]}/"{usage,requests?limit=100} \
		"/keys/${ids[2]}/"{usage,requests?limit=100} "/keys/${ids[3]}/"{usage,requests?limit=100}; do
		echo "get $path $(call GET "$path")"
	done
} >"$here/$format.answers"
kill $server; wait $server || true
redis-cli -p $redis BGREWRITEAOF >/dev/null
until redis-cli -p $redis INFO persistence | grep -q 'aof_rewrite_in_progress:0' && redis-cli -p $redis INFO persistence | grep -q 'aof_rewrite_scheduled:0'; do sleep 0.1; done
redis-cli -p $redis SHUTDOWN || true
cat appendonlydir/*.base.aof appendonlydir/*.incr.aof 2>/dev/null | gzip -9n >"$here/$format.aof.gz"

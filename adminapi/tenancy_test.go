package adminapi_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

// same fails unless two answers differ in nothing but request id and date.
func same(t *testing.T, what string, got, want *result) {
	t.Helper()
	if got.status != want.status || string(got.body) != string(want.body) {
		t.Errorf("%s: another account's answers\n%v, one that does not exist\n%v", what, got.exchange, want.exchange)
	}
	for _, h := range []*result{got, want} {
		h.header.Del("X-Request-Id")
		h.header.Del("Date")
	}
	for name := range want.header {
		if got.header.Get(name) != want.header.Get(name) {
			t.Errorf("%s: %s: another account's answers %q, one that does not exist %q", what, name, got.header.Get(name), want.header.Get(name))
		}
	}
	if len(got.header) != len(want.header) {
		t.Errorf("%s: headers: got %v, want %v", what, got.header, want.header)
	}
}

// Accounts cannot see each other: on every endpoint with an id, something of another
// account answers byte for byte like something that does not exist.
func TestTenancyPaths(t *testing.T) {
	a := newAPI(t)
	b := a.as(a.account("other"))
	b.user("First")
	ids := map[string]struct{ others, none string }{
		"plans": {b.plan(5), "plan_AAAAAAAAAAAAAAAAAAAA"},
		"users": {b.user("Second"), "99"},
	}
	key, secret := b.key(ids["users"].others, ids["plans"].others)
	ids["keys"] = struct{ others, none string }{key, "key_AAAAAAAAAAAAAAAAAAAA"}

	ids["holds"] = struct{ others, none string }{b.validateWith(secret, `,"hold_seconds": 60`).at()["hold_id"].(string), "hold_1_AAAAAAAAAAAAAAAAAAAAAAAA"}

	hook := b.do("POST", prefix+"/webhooks", object{"url": "https://example.com/hook"}).data()["id"].(string)
	ids["webhooks"] = struct{ others, none string }{hook, "wh_AAAAAAAAAAAAAAAAAAAA"}

	bodies := map[string]object{
		"PUT /webhooks/{id}":      {"is_active": false},
		"POST /holds/{id}/settle": {"costs": object{"requests": 0}},
		"POST /users/{id}/keys":   {"name": "Mine", "plan_id": a.plan(5)},
		"PUT /users/{id}":         {"name": "Mine"}, "PUT /plans/{id}": {"name": "Mine"}, "PUT /keys/{id}": {"name": "Mine"},
	}
	for _, kind := range []string{"keys", "users"} {
		bodies["POST /"+kind+"/{id}/usage/adjust"] = object{"delta": 5, "reason": "A grant"}
	}
	tried := 0
	for op := range operations(t) {
		method, path, _ := strings.Cut(op, " "+prefix)
		if !strings.Contains(path, "{id}") {
			continue
		}
		tried++
		id := ids[strings.Split(path, "/")[1]]
		var body any
		if b := bodies[method+" "+path]; b != nil {
			body = b
		}
		send := func(id string) *result {
			return a.in(t).do(method, prefix+strings.Replace(path, "{id}", id, 1), body).want(http.StatusNotFound)
		}
		same(t, op, send(id.others), send(id.none))
	}
	if tried != 36 {
		t.Errorf("operations with an id: got %d, want 36", tried)
	}
	b.do("GET", prefix+"/keys/"+key, nil).want(200) // the key is unchanged
}

// The same holds for references in a body or a filter.
func TestTenancyReferences(t *testing.T) {
	a := newAPI(t)
	mine, plan := a.user("Mine"), a.plan(5)
	key, _ := a.key(mine, plan)
	b := a.as(a.account("other"))
	b.user("First")
	theirs, theirPlan := b.user("Second"), b.plan(5)
	b.do("PUT", prefix+"/users/"+theirs, object{"email": "second@example.com", "external_id": "cus_second"}).want(200)
	_, secret := b.key(theirs, theirPlan)
	const noPlan, noUser = "plan_AAAAAAAAAAAAAAAAAAAA", "99"

	for _, tc := range []struct {
		name, method, path string
		body               func(user, plan string) object
	}{
		{"user of a new key", "POST", "/keys", func(u, _ string) object { return object{"name": "x", "user_id": json.Number(u), "plan_id": plan} }},
		{"plan of a new key", "POST", "/keys", func(_, p string) object {
			return object{"name": "x", "user_id": json.Number(mine), "plan_id": p}
		}},
		{"plan of a new key of a user", "POST", "/users/" + mine + "/keys", func(_, p string) object { return object{"name": "x", "plan_id": p} }},
		{"user of a key", "PUT", "/keys/" + key, func(u, _ string) object { return object{"user_id": json.Number(u)} }},
		{"plan of a key", "PUT", "/keys/" + key, func(_, p string) object { return object{"plan_id": p} }},
		{"plan of a new user", "POST", "/users", func(_, p string) object { return object{"name": "x", "plan_id": p} }},
		{"plan of a user", "PUT", "/users/" + mine, func(_, p string) object { return object{"plan_id": p} }},
	} {
		same(t, tc.name, a.do(tc.method, prefix+tc.path, tc.body(theirs, theirPlan)).want(404),
			a.do(tc.method, prefix+tc.path, tc.body(noUser, noPlan)).want(404))
	}
	for others, none := range map[string]string{
		"/keys?user_id=" + theirs:         "/keys?user_id=" + noUser,
		"/keys?plan_id=" + theirPlan:      "/keys?plan_id=" + noPlan,
		"/users?email=second@example.com": "/users?email=nobody@example.com",
		"/users?external_id=cus_second":   "/users?external_id=cus_nobody",
		"/requests?user_id=" + theirs:     "/requests?user_id=" + noUser,
		"/requests?key_id=key_" + theirs:  "/requests?key_id=key_none",
	} {
		same(t, others, a.do("GET", prefix+others, nil).want(200), a.do("GET", prefix+none, nil).want(200))
	}
	for _, q := range []string{"second@example.com", "cus_second", theirPlan, "Second"} {
		same(t, "search "+q, a.do("GET", prefix+"/search?q="+q, nil).want(200), a.do("GET", prefix+"/search?q=no"+q, nil).want(200))
	}
	same(t, "search by value", a.do("POST", prefix+"/search", object{"q": secret}).want(200), a.do("POST", prefix+"/search", object{"q": "nobody"}).want(200))
	b.validateWith(secret, `,"cost": 5`)
	if n := b.do("GET", prefix+"/thresholds", nil).want(200).at()["count"]; n != json.Number("1") {
		t.Errorf("counters of the other account near a limit: got %v, want 1", n)
	}
	if n := a.do("GET", prefix+"/thresholds", nil).want(200).at()["count"]; n != json.Number("0") {
		t.Errorf("counters near a limit: got %v, want none of another account", n)
	}
	same(t, "validate", a.validate(secret), a.validate("lk_user_unknown"))

	// Emails and external ids are unique within an account only: another account may use the same values.
	a.do("POST", prefix+"/users", object{"name": "x", "email": "second@example.com", "external_id": "cus_second"}).want(201)
}

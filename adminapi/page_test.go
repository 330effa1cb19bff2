package adminapi_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
)

func jsonNumber(s string) json.Number { return json.Number(s) }

// Every list refuses and names an invalid parameter. Ignoring it would return too many items.
func TestParameterFaults(t *testing.T) {
	a := newAPI(t)
	plan, user := a.plan(5), a.user("Example Customer")
	key, _ := a.key(user, plan)
	lists := []string{"/keys", "/plans", "/users", "/users/" + user + "/keys", "/users/" + user + "/requests",
		"/plans/" + plan + "/keys", "/plans/" + plan + "/users", "/keys/" + key + "/requests", "/requests"}
	wrong := []string{"", "0", "00", "-1", "%2B1", "+1", "1.0", "1e1", "0x1", "%201", "1%20", "a", "%D9%A1", "%ff", "1&page=1&limit=1"}
	for _, path := range lists {
		for _, v := range wrong {
			for _, p := range []string{"page", "limit"} {
				if v == "1&page=1&limit=1" && p == "limit" {
					continue // page comes first
				}
				a.in(t).bad("GET", prefix+path+"?"+p+"="+v, nil).wantField(core.CodeValidation, p)
			}
		}
		a.in(t).bad("GET", prefix+path+"?page=%zz", nil).wantField(core.CodeValidation, "query")
		a.in(t).bad("GET", prefix+path+"?page=1;limit=2", nil).wantField(core.CodeValidation, "query")
		a.in(t).do("GET", prefix+path+"?page=1&limit=1", nil).want(200)
	}
	for _, query := range []string{"user_id=", "user_id=0", "user_id=-1", "user_id=a", "user_id=1&user_id=1",
		"plan_id=", "plan_id=a%2Fb", "plan_id=%00", "plan_id=" + fill("a", 65), "plan_id=a&plan_id=a",
		"status=", "status=Active", "status=deleted", "status=active&status=active"} {
		field, _, _ := strings.Cut(query, "=")
		a.in(t).bad("GET", prefix+"/keys?"+query, nil).wantField(core.CodeValidation, field)
	}
	for _, query := range []string{"user_id=0", "key_id=", "key_id=a%2Fb", "key_id=%00", "key_id=" + fill("a", 65), "key_id=a&key_id=a",
		"status=", "reason=none", "endpoint=", "endpoint=%ff", "from=2026-02-30", "to=2026", "to=2026-03-14&from=2026-03-14", "page=10001&limit=1"} {
		field, _, _ := strings.Cut(query, "=")
		a.in(t).bad("GET", prefix+"/requests?"+query, nil).wantField(core.CodeValidation, field)
	}
	for _, query := range []string{"email=", "email=" + fill("a", 255), "email=%ff", "email=a&email=b"} {
		a.in(t).bad("GET", prefix+"/users?"+query, nil).wantField(core.CodeValidation, "email")
	}
	for _, query := range []string{"external_id=", "external_id=" + fill("a", 1021), "external_id=%ff", "external_id=a&external_id=b"} {
		a.in(t).bad("GET", prefix+"/users?"+query, nil).wantField(core.CodeValidation, "external_id")
	}
}

// Every operation refuses an unknown parameter by its name. Otherwise a client that filters by
// customer_id would get every user.
func TestUnknownParameters(t *testing.T) {
	a := newAPI(t)
	key, secret := a.key(a.user("Example Customer"), a.plan(5))
	for op, o := range operations(t) {
		method, path := splitOp(op)
		code := core.CodeValidation
		if strings.HasSuffix(path, "/validate") {
			code = core.CodeInvalidRequest
		}
		known := "" // all that the operation has
		for _, p := range append(a.contract.doc.Paths.Value(strings.Fields(op)[1]).Parameters, o.Parameters...) {
			if p.Value.In == "query" {
				known += p.Value.Name + "=1&"
			}
		}
		for query, field := range map[string]string{
			"customer_id=4711": "customer_id", "z=1&a=2": "z", "%7a": "z", "=1": "body", "Page=1": "Page",
			secret + "=1": "lk_***", fill("b", 70): fill("b", 64), "a=1&a=2": "a",
		} {
			a.in(t).bad(method, path+"?"+known+query, nil).wantField(code, field)
		}
		a.in(t).bad(method, path+"?%zz", nil).wantField(code, "query")
	}
	a.do("GET", prefix+"/keys/"+key, nil).want(200) // it was not deleted
	a.bad("GET", prefix+"/plans?&page=1&&", nil).want(200)
}

// The filters of the list of keys select by user, plan and status, together too.
func TestKeyFilters(t *testing.T) {
	a := newAPI(t)
	plans, users := []string{a.plan(1), a.plan(2)}, []string{a.user("One"), a.user("Two")}
	for _, u := range users {
		for _, p := range plans {
			id, _ := a.key(u, p)
			a.key(u, p)
			a.do("PUT", prefix+"/keys/"+id, object{"status": "inactive"}).want(200)
		}
	}
	for query, want := range map[string]int{
		"": 8, "?user_id=1": 4, "?plan_id=" + plans[0]: 4, "?status=active": 4, "?status=inactive": 4,
		"?user_id=2&plan_id=" + plans[1]: 2, "?user_id=2&status=active&plan_id=" + plans[1]: 1,
		"?user_id=9007199254740991": 0, "?plan_id=plan_x": 0,
	} {
		r := a.do("GET", prefix+"/keys"+query, nil).want(200)
		if got := len(r.items()); got != want || intOf(r.at()["count"]) != want {
			t.Errorf("%q: got %d of %v, want %d", query, got, r.at()["count"], want)
		}
	}
}

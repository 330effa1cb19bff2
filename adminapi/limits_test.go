package adminapi_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// limitedKey creates a plan with the members in JSON, and a key on the plan. It returns the ids of the user and the key,
// and the value of the key.
func (a *api) limitedKey(members string) (user, key, secret string) {
	a.t.Helper()
	plan := a.do("POST", prefix+"/plans", `{"name":"Limited",`+members+`}`).want(201).data()["id"].(string)
	user = a.user("Example Customer")
	key, secret = a.key(user, plan)
	return user, key, secret
}

// validateWith validates a request with more members.
func (a *api) validateWith(secret, members string) *result {
	a.t.Helper()
	return a.do("POST", prefix+"/validate", `{"api_key":"`+secret+`","endpoint":"/v1/items","method":"GET"`+members+`}`).want(200)
}

// A plan with several limits refuses a request as a whole, names the limit that refused, and lists all of them.
func TestSeveralLimits(t *testing.T) {
	a := newAPI(t)
	user, key, secret := a.limitedKey(`"max_requests":3,"request_period":"day","limits":[{"meter":"tokens","max":100,"period":"month"},{"meter":"requests","max":9,"period":"lifetime"}]`)
	details := func(r *result) string {
		d := r.at("details")
		return fmt.Sprint(d["meter"], " ", d["period"], " ", d["current_usage"], " of ", d["limit"], " until ", d["reset_time"])
	}
	for _, tt := range []struct{ members, want, reason string }{
		{`,"costs":{"tokens":60}`, "requests day 1 of 3 until 2026-03-15T00:00:00Z", ""},
		{`,"costs":{"tokens":41}`, "tokens month 60 of 100 until 2026-04-01T00:00:00Z", "quota"},
		{`,"cost":0,"costs":{"tokens":40}`, "requests day 1 of 3 until 2026-03-15T00:00:00Z", ""},
		{`,"costs":{"tokens":0}`, "tokens month 100 of 100 until 2026-04-01T00:00:00Z", "quota"}, // charged afterwards: something must be left
		{`,"costs":{"requests":3}`, "requests day 1 of 3 until 2026-03-15T00:00:00Z", "quota"},
		{`,"costs":{"requests":2}`, "requests day 3 of 3 until 2026-03-15T00:00:00Z", ""},
		{`,"costs":{"tokens":1}`, "tokens month 100 of 100 until 2026-04-01T00:00:00Z", "quota"},
		{`,"costs":{"requests":7}`, "requests lifetime 3 of 9 until <nil>", "quota"},
	} {
		r := a.validateWith(secret, tt.members)
		reason, _ := r.at()["reason"].(string)
		if got := details(r); got != tt.want || reason != tt.reason {
			t.Errorf("%s: got %s, %q, want %s, %q", tt.members, got, reason, tt.want, tt.reason)
		}
	}
	r := a.do("POST", prefix+"/validate", `{"api_key":"`+secret+`","endpoint":"/v1/items","method":"GET","costs":{"token":250}}`).want(400) // a misspelt tokens
	if field := r.at("details")["field"]; field != "costs.token" {
		t.Errorf("an unknown meter: got the field %v, want costs.token", field)
	}
	const want = `[map[max:3 meter:requests of:plan period:day remaining:0 reset_time:2026-03-15T00:00:00Z used:3] ` +
		`map[max:100 meter:tokens of:plan period:month remaining:0 reset_time:2026-04-01T00:00:00Z used:100] ` +
		`map[max:9 meter:requests of:plan period:lifetime remaining:6 reset_time:<nil> used:3]]`
	usage := a.do("GET", prefix+"/keys/"+key+"/usage", nil).want(200).data()
	counters := a.do("GET", prefix+"/users/"+user+"/usage", nil).want(200).data()["counters"].([]any)
	for name, got := range map[string]any{
		"validation": a.validateWith(secret, `,"cost":0`).at("details")["limits"],
		"key usage":  usage["limits"],
		"user usage": counters[0].(map[string]any)["limits"],
	} {
		want := want
		if name != "validation" { // usage answers say when each is used up: two limits are, and the third at this pace
			for _, at := range []string{"2026-03-14T09:26:53Z", "2026-03-14T09:26:53Z", "2026-03-27T04:20:39Z"} {
				want = strings.Replace(want, "map[max", "map[exhausts_at:"+at+" max", 1)
			}
		}
		if fmt.Sprint(got) != want {
			t.Errorf("%s: got %v, want %s", name, got, want)
		}
	}
	newest := a.do("GET", prefix+"/keys/"+key+"/requests", nil).want(200).data()["requests"].([]any)
	if got := fmt.Sprint(newest[len(newest)-1].(map[string]any)["costs"]); got != "map[requests:1 tokens:60]" {
		t.Errorf("costs of the first request: got %s", got)
	}
}

// A plan with max_requests null allows any number of requests, and counts them.
func TestUnlimited(t *testing.T) {
	a := newAPI(t)
	user, key, secret := a.limitedKey(`"max_requests":null`)
	for range 3 {
		a.validateWith(secret, `,"cost":1000000`)
	}
	r := a.validateWith(secret, "")
	if d := r.at("details"); d["limit"] != nil || d["remaining"] != nil || d["current_usage"] != jsonNumber("3000001") || d["period"] != "month" || r.at()["success"] != true {
		t.Errorf("got %v", r.at())
	}
	for _, name := range []string{"X-RateLimit-Limit", "X-RateLimit-Remaining", "RateLimit", "RateLimit-Policy"} {
		if got := r.header.Get(name); got != "" {
			t.Errorf("%s: got %q, want none", name, got)
		}
	}
	usage := a.do("GET", prefix+"/keys/"+key+"/usage", nil).want(200).data()
	if usage["limit"] != nil || usage["remaining"] != nil || usage["current_usage"] != jsonNumber("3000001") || fmt.Sprint(usage["limits"]) != "[]" {
		t.Errorf("key usage: got %v", usage)
	}
	if u := a.do("GET", prefix+"/users/"+user+"/usage", nil).want(200).data(); u["limit"] != nil {
		t.Errorf("user usage: got %v", u)
	}
}

// PUT of a plan replaces its limits, keeps them when it does not name them, and takes back what GET has answered. An
// account has at most 16 meters besides requests.
func TestPlanLimits(t *testing.T) {
	a := newAPI(t)
	limits := func(names ...string) string {
		var list []string
		for _, name := range names {
			list = append(list, `{"meter":"`+name+`","max":5,"period":"hour"}`)
		}
		return `[` + strings.Join(list, ",") + `]`
	}
	var names []string
	for i := range core.MaxMeters {
		names = append(names, fmt.Sprint("meter_", i))
	}
	id := a.do("POST", prefix+"/plans", `{"name":"a","max_requests":5,"request_period":"day","limits":`+limits(names...)+`}`).want(201).data()["id"].(string)
	a.bad("POST", prefix+"/plans", `{"name":"b","max_requests":5,"request_period":"day","limits":`+limits("one_more")+`}`).wantField(core.CodeValidation, "limits")
	a.bad("PUT", prefix+"/plans/"+id, `{"limits":[{"meter":"requests","max":5,"period":"day"}]}`).wantField(core.CodeValidation, "limits")
	for _, tt := range []struct{ body, want string }{
		{`{"name":"b"}`, fmt.Sprint(core.MaxMeters)},
		{`{"limits":` + limits("other") + `}`, "1"},
		{`{"max_requests":null,"limits":[{"meter":"requests","max":5,"period":"day"}]}`, "1"},
		{`{"limits":null}`, "0"},
	} {
		r := a.do("PUT", prefix+"/plans/"+id, tt.body).want(200)
		if got := fmt.Sprint(len(r.data()["limits"].([]any))); got != tt.want {
			t.Errorf("%s: got %s limits, want %s", tt.body, got, tt.want)
		}
		a.do("PUT", prefix+"/plans/"+id, r.data()).want(200)
	}
}

// The cost of requests is given once, and costs are bounded.
func TestCosts(t *testing.T) {
	a := newAPI(t)
	_, _, secret := a.limitedKey(`"max_requests":3,"request_period":"day"`)
	many := make([]string, core.MaxCosts+1)
	for i := range many {
		many[i] = fmt.Sprintf(`"m%d":1`, i)
	}
	for members, field := range map[string]string{
		`,"cost":1,"costs":{"requests":1}`: "costs", `,"costs":5`: "costs", `,"costs":null`: "costs", `,"costs":{"tokens":-1}`: "costs", `,"costs":{"tokens":1.5}`: "costs",
		`,"costs":{"Tokens":1}`: "costs", `,"costs":{"tokens":1000000001}`: "costs", `,"costs":{"requests":1000001}`: "cost", `,"costs":{"tokens":"1"}`: "costs",
		`,"costs":{` + strings.Join(many, ",") + `}`: "costs",
	} {
		a.bad("POST", prefix+"/validate", `{"api_key":"`+secret+`","endpoint":"/","method":"GET"`+members+`}`).wantField(core.CodeInvalidRequest, field)
	}
}

// The flow of a published client: a user with custom_start, a validation, and the end of the period. Moving the start, or
// clearing it, keeps the usage of the open window: it grants no quota.
func TestCustomStart(t *testing.T) {
	a := newAPI(t)
	plan := a.do("POST", prefix+"/plans", `{"name":"Basic","max_requests":3,"request_period":"month"}`).want(201).data()["id"].(string)
	u := a.do("POST", prefix+"/users", `{"name":"Ann","plan_id":"`+plan+`","custom_start":"2026-01-31T08:00:00+01:00"}`).want(201)
	if got := u.data()["custom_start"]; got != "2026-01-31T07:00:00Z" {
		t.Errorf("custom_start: got %v", got)
	}
	user := fmt.Sprint(u.data()["user_id"])
	key := a.do("POST", prefix+"/keys", `{"name":"k","user_id":`+user+`}`).want(201).data()
	secret := key["api_key"].(string)
	wantPeriod := func(when string, used, start, end string) {
		t.Helper()
		d := a.validateWith(secret, `,"cost":0`).at("details")
		if got := fmt.Sprint(d["current_usage"], " ", d["period_start"], " ", d["period_end"]); got != used+" "+start+" "+end {
			t.Errorf("%s: got %s, want %s %s %s", when, got, used, start, end)
		}
		usage := a.do("GET", prefix+"/keys/"+key["id"].(string)+"/usage", nil).want(200).data()
		if got := fmt.Sprint(usage["current_usage"], " ", usage["reset_time"]); got != used+" "+end {
			t.Errorf("%s: usage of the key: got %s, want %s %s", when, got, used, end)
		}
	}
	a.validateWith(secret, `,"cost":3`)
	wantPeriod("at first", "3", "2026-02-28T07:00:00Z", "2026-03-31T07:00:00Z")
	for _, move := range []struct{ start, begin, end string }{
		{`"2026-03-14"`, "2026-03-14T00:00:00Z", "2026-04-14T00:00:00Z"},
		{`"2026-03-14T09:26:53Z"`, "2026-03-14T09:26:53Z", "2026-04-14T09:26:53Z"},
		{`null`, "2026-03-01T00:00:00Z", "2026-04-01T00:00:00Z"},
		{`"2020-12-31"`, "2026-02-28T00:00:00Z", "2026-03-31T00:00:00Z"},
	} {
		a.clock.Pass(time.Minute)
		r := a.do("PUT", prefix+"/users/"+user, `{"custom_start":`+move.start+`}`).want(200)
		a.do("PUT", prefix+"/users/"+user, r.data()).want(200)
		wantPeriod("moved to "+move.start, "3", move.begin, move.end)
	}
	for range core.MaxAnchors {
		a.clock.Pass(time.Hour)
		for _, start := range []string{"2026-03-01", "2026-03-02"} {
			a.exchange("PUT", prefix+"/users/"+user, `{"custom_start":"`+start+`"}`)
		}
	}
	a.clock.Pass(time.Hour)
	a.bad("PUT", prefix+"/users/"+user, `{"custom_start":"2026-03-05"}`).wantField(core.CodeValidation, "custom_start")
	a.clock.Pass(2 * 366 * 24 * time.Hour)
	a.do("PUT", prefix+"/users/"+user, `{"custom_start":"2026-03-05"}`).want(200)
}

// A filter by plan selects the keys that the plan limits: with the plan, and without a plan of their own when it is that of
// their user.
func TestKeysUnderPlan(t *testing.T) {
	a := newAPI(t)
	plan, other := a.plan(5), a.plan(5)
	user, second := a.user("First"), a.user("Second")
	own, _ := a.key(user, plan)
	a.key(second, other)
	names := func(path string) string {
		var ids []string
		r := a.do("GET", prefix+path, nil).want(200)
		for _, k := range r.at()["data"].([]any) {
			ids = append(ids, k.(map[string]any)["id"].(string))
		}
		return fmt.Sprint(r.at()["count"], ids)
	}
	for _, path := range []string{"/keys?plan_id=" + plan, "/plans/" + plan + "/keys"} {
		if got, want := names(path), fmt.Sprint("1", []string{own}); got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
	a.do("PUT", prefix+"/users/"+second, object{"plan_id": plan}).want(200)
	var shared []string
	for range 3 {
		k := a.do("POST", prefix+"/users/"+second+"/keys", object{"name": "shared"}).want(201).data()
		shared = append(shared, k["id"].(string))
	}
	for path, want := range map[string]string{
		"/keys?plan_id=" + plan:                                           fmt.Sprint("4", append([]string{own}, shared...)),
		"/plans/" + plan + "/keys?limit=2&page=2":                         fmt.Sprint("4", shared[1:]),
		"/keys?plan_id=" + plan + "&user_id=" + second + "&status=active": fmt.Sprint("3", shared),
	} {
		if got := names(path); got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
}

package adminapi_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/adminapi"
	"github.com/limitkeeper/limitkeeper/core"
)

// The tests in this file go through the tables of the specification line by line.
// When one fails, a promise of the specification itself is broken.

// fields is a table of a resource: the member, its JSON type, and whether it may be
// null.
type fields map[string]string

const (
	isText   = "string"
	isNumber = "number"
	isFlag   = "boolean"
	isTime   = "time"
	isObject = "object"
	isArray  = "array"
	orNull   = " or null"
)

// holdFields fails unless v has exactly the fields, each of its type.
func holdFields(t *testing.T, what string, v map[string]any, want fields) {
	t.Helper()
	if got, want := slices.Sorted(maps.Keys(v)), slices.Sorted(maps.Keys(want)); !slices.Equal(got, want) {
		t.Errorf("%s: got the fields %v, want %v", what, got, want)
	}
	for name, kind := range want {
		if got := kindOf(v[name]); got != kind && !(kind == isText && got == isTime) &&
			!(strings.HasSuffix(kind, orNull) && (got == "null" || got == strings.TrimSuffix(kind, orNull))) {
			t.Errorf("%s: %s is a %s, want a %s: %v", what, name, got, kind, v[name])
		}
	}
}

func kindOf(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case string:
		if at, err := time.Parse(time.RFC3339, v); err == nil && at.Location() == time.UTC {
			return isTime
		}
		return isText
	case json.Number, float64:
		return isNumber
	case bool:
		return isFlag
	case []any:
		return isArray
	}
	return isObject
}

// "Resources and their fields": every resource, usage and history entry has the
// fields of its table, the additions of the contract, and no others.
func TestSpecFields(t *testing.T) {
	a := newAPI(t)
	plan, user := a.plan(100), a.user("Example Customer")
	id, secret := a.key(user, plan)
	a.validate(secret)

	full := fields{"id": isText, "hint": isText, "name": isText, "user_id": isNumber, "plan_id": isText + orNull, "status": isText,
		"created_at": isTime, "updated_at": isTime, "expires_at": isTime + orNull, "metadata": isObject + orNull, "last_used_at": isTime + orNull, "last_refused_at": isTime + orNull,
		"scopes": isArray + orNull, "allowed_endpoints": isArray + orNull, "allowed_ips": isArray + orNull, "limits": isArray, "rate": isObject + orNull, "concurrency": isNumber + orNull}
	planFields := fields{"id": isText, "name": isText, "description": isText + orNull, "max_requests": isNumber,
		"request_period": isText, "on_exceed": isText, "limits": isArray, "rate": isObject + orNull, "concurrency": isNumber + orNull, "is_active": isFlag, "features": isArray, "created_at": isTime, "updated_at": isTime}
	userFields := fields{"user_id": isNumber, "name": isText, "email": isText + orNull, "external_id": isText + orNull, "is_disabled": isFlag,
		"plan_id": isText + orNull, "metadata": isObject + orNull, "custom_start": isTime + orNull, "overrides": isArray, "created_at": isTime, "updated_at": isTime}
	usage := fields{"current_usage": isNumber, "limit": isNumber, "remaining": isNumber, "reset_time": isTime, "plan_name": isText}
	keyUsage := fields{"percentage_used": isNumber, "period": isText, "meter": isText, "last_used_at": isTime + orNull, "last_refused_at": isTime + orNull, "denied_omitted": isNumber, "of": isText, "limits": isArray}
	maps.Copy(keyUsage, usage)
	usage["period_start"], usage["period_end"], usage["meter"], usage["period"], usage["of"] = isTime, isTime, isText, isText, isText
	entry := fields{"timestamp": isTime, "endpoint": isText, "method": isText, "status": isText, "ip_address": isText}
	userEntry := fields{"key_id": isText}
	maps.Copy(userEntry, entry)

	for path, want := range map[string]fields{
		"/keys/" + id:    full,
		"/plans/" + plan: planFields,
		"/users/" + user: userFields,
		"/users/" + user + "/usage": {"type": isText, "current_usage": isNumber, "limit": isNumber, "percentage_used": isNumber, "user_name": isText, "plan_name": isText + orNull,
			"counters": isArray, "counter_count": isNumber},
		"/plans/" + plan + "/usage": {"total_users": isNumber, "total_requests": isNumber, "average_usage": isNumber, "period": isText},
		"/keys/" + id + "/usage":    keyUsage,
	} {
		holdFields(t, path, a.do("GET", prefix+path, nil).want(200).data(), want)
	}
	for path, want := range map[string]fields{
		"/keys":                     full,
		"/plans":                    planFields,
		"/users":                    userFields,
		"/users/" + user + "/keys":  {"id": isText, "name": isText, "plan_id": isText + orNull, "status": isText, "created_at": isTime},
		"/plans/" + plan + "/keys":  {"id": isText, "name": isText, "user_id": isNumber, "status": isText, "created_at": isTime},
		"/plans/" + plan + "/users": {"user_id": isNumber, "name": isText, "email": isText + orNull, "created_at": isTime},
	} {
		r := a.do("GET", prefix+path, nil).want(200)
		holdFields(t, path, r.at(), fields{"data": isArray, "count": isNumber})
		holdFields(t, path, r.items()[0], want)
	}
	for path, want := range map[string]fields{"/keys/" + id + "/requests": entry, "/users/" + user + "/requests": userEntry} {
		r := a.do("GET", prefix+path, nil).want(200)
		holdFields(t, path, r.data(), fields{"requests": isArray, "count": isNumber})
		holdFields(t, path, r.data()["requests"].([]any)[0].(map[string]any), want)
	}
	holdFields(t, "validation result", a.validate(secret).at("details"), usage)
}

// "Resources and their fields", API key: the value begins with lk_user_, and is in
// the answers that make it and nowhere else.
func TestSpecKeyValue(t *testing.T) {
	a := newAPI(t)
	id, secret := a.key(a.user("Example Customer"), a.plan(5))
	if !strings.HasPrefix(secret, "lk_user_") || len(secret) != 40 {
		t.Errorf("got the value %q, want lk_user_ and 32 letters or digits", secret)
	}
	r := a.do("GET", prefix+"/keys/"+id, nil).want(200)
	if got, want := r.str("hint"), "lk_user_…"+secret[len(secret)-4:]; got != want {
		t.Errorf("hint: got %q, want %q", got, want)
	}
	if got := r.str("status"); got != "active" {
		t.Errorf("status: got %q, want active", got)
	}
}

// "Endpoints": each row answers with its status and envelope.
func TestSpecEndpoints(t *testing.T) {
	a := newAPI(t)
	plan, user := a.plan(100), a.user("Example Customer")
	key, secret := a.key(user, plan)
	newPlan := object{"name": "Pro", "description": "More", "max_requests": 5, "request_period": "day", "is_active": true}
	const (
		one        = "data: object"
		many       = "data: array, count"
		history    = "data.requests: array, data.count"
		gone       = "data.message"
		validation = "success, details"
	)
	rows := []struct {
		method, path string
		body         any
		status       int
		envelope     string
	}{
		{"POST", "/validate", object{"api_key": secret, "endpoint": "/", "method": "PUT"}, 200, validation},
		{"GET", "/keys", nil, 200, many},
		{"POST", "/keys", object{"name": "k", "user_id": json.Number(user), "plan_id": plan}, 201, one},
		{"GET", "/keys/" + key, nil, 200, one},
		{"PUT", "/keys/" + key, object{"name": "Renamed"}, 200, one},
		{"GET", "/keys/" + key + "/usage", nil, 200, one},
		{"GET", "/keys/" + key + "/requests", nil, 200, history},
		{"POST", "/keys/" + key + "/regenerate", nil, 200, one},
		{"GET", "/plans", nil, 200, many},
		{"POST", "/plans", newPlan, 201, one},
		{"GET", "/plans/" + plan, nil, 200, one},
		{"PUT", "/plans/" + plan, object{"max_requests": 7}, 200, one},
		{"GET", "/plans/" + plan + "/usage", nil, 200, one},
		{"GET", "/plans/" + plan + "/users", nil, 200, many},
		{"GET", "/plans/" + plan + "/keys", nil, 200, many},
		{"GET", "/users", nil, 200, many},
		{"POST", "/users", object{"name": "Second", "email": "second@example.com"}, 201, one},
		{"GET", "/users/" + user, nil, 200, one},
		{"PUT", "/users/" + user, object{"is_disabled": false}, 200, one},
		{"GET", "/users/" + user + "/usage", nil, 200, one},
		{"GET", "/users/" + user + "/keys", nil, 200, many},
		{"POST", "/users/" + user + "/keys", object{"name": "k", "plan_id": plan}, 201, one},
		{"GET", "/users/" + user + "/requests", nil, 200, history},
		{"DELETE", "/keys/" + key, nil, 200, gone},
		{"DELETE", "/users/" + user, nil, 200, gone},
		{"DELETE", "/plans/" + plan, nil, 200, gone},
	}
	for _, row := range rows {
		r := a.in(t).do(row.method, prefix+row.path, row.body).want(row.status)
		if got := r.header.Get("Content-Type"); got != "application/json" {
			t.Errorf("%s %s: Content-Type %q", row.method, row.path, got)
		}
		switch row.envelope {
		case one:
			holdFields(t, row.path, r.at(), fields{"data": isObject})
		case many:
			holdFields(t, row.path, r.at(), fields{"data": isArray, "count": isNumber})
		case history:
			holdFields(t, row.path, r.data(), fields{"requests": isArray, "count": isNumber})
		case gone:
			holdFields(t, row.path, r.data(), fields{"message": isText})
		case validation:
			holdFields(t, row.path, r.at(), fields{"success": isFlag, "details": isObject})
		}
	}
	if specified := 26; len(rows) != specified {
		t.Errorf("rows: got %d, want %d", len(rows), specified)
	}
}

// "Validation", behaviour 1 and 2, and the headers: usage below the limit is allowed
// and counted before the answer; at the limit it is denied and not counted.
func TestSpecValidateQuota(t *testing.T) {
	a := newAPI(t)
	_, secret := a.key(a.user("Example Customer"), a.plan(3))
	reset := time.Date(2026, time.April, 1, 0, 0, 0, 0, time.UTC)
	for _, want := range []struct {
		success         bool
		used, remaining string
	}{{true, "1", "2"}, {true, "2", "1"}, {true, "3", "0"}, {false, "3", "0"}, {false, "3", "0"}} {
		r := a.validate(secret)
		d := r.at("details")
		if got := r.at()["success"]; got != want.success {
			t.Errorf("%v\nsuccess: got %v, want %v", r, got, want.success)
		}
		if got, want := fmt.Sprint(d["current_usage"], d["limit"], d["remaining"], d["reset_time"], d["plan_name"]),
			fmt.Sprint(json.Number(want.used), json.Number("3"), json.Number(want.remaining), "2026-04-01T00:00:00Z", "Basic"); got != want {
			t.Errorf("details: got %s, want %s", got, want)
		}
		if got := fmt.Sprint(r.at()["error"], r.at()["code"], r.at()["reason"]); !want.success && got != "Rate limit exceeded<nil>quota" {
			t.Errorf("%v\ngot error, code and reason %s, want Rate limit exceeded, no code, quota", r, got)
		}
		for name, value := range map[string]string{
			"X-RateLimit-Limit":     "3",
			"X-RateLimit-Remaining": want.remaining,
			"X-RateLimit-Reset":     fmt.Sprint(reset.Unix()),
			"X-RateLimit-Plan":      "Basic",
			"RateLimit-Policy":      `"month";q=3;w=2678400`,
			"RateLimit":             `"month";r=` + want.remaining + `;t=1521187`,
			"Cache-Control":         "no-store",
		} {
			if got := r.header.Get(name); got != value {
				t.Errorf("%s: got %q, want %q", name, got, value)
			}
		}
	}
}

// The middleware of a published client tells its callers details.period_end as the reset and
// as the time to retry, and limit less current_usage as what remains, of an answer that is
// allowed and of one that is denied. A member that is missing is undefined there.
func TestPublishedMiddleware(t *testing.T) {
	a := newAPI(t)
	_, secret := a.key(a.user("Example Customer"), a.plan(1))
	for used := range 2 {
		var result struct {
			Success bool
			Error   string
			Details *struct {
				CurrentUsage *int64  `json:"current_usage"`
				Limit        *int64  `json:"limit"`
				PlanName     *string `json:"plan_name"`
				PeriodStart  *string `json:"period_start"`
				PeriodEnd    *string `json:"period_end"`
				ResetTime    *string `json:"reset_time"`
			}
		}
		r := a.validate(secret)
		if err := json.Unmarshal(r.body, &result); err != nil {
			t.Fatal(err)
		}
		d := result.Details
		if d == nil || d.CurrentUsage == nil || d.Limit == nil || d.PlanName == nil || d.PeriodStart == nil || d.PeriodEnd == nil {
			t.Fatalf("%v\nlacks what the middleware reads", r)
		}
		got := fmt.Sprint(result.Success, result.Error, " ", *d.Limit-*d.CurrentUsage, " ", *d.PlanName, " ", *d.PeriodStart, " ", *d.PeriodEnd)
		want := []string{"true 0 Basic 2026-03-01T00:00:00Z 2026-04-01T00:00:00Z", "falseRate limit exceeded 0 Basic 2026-03-01T00:00:00Z 2026-04-01T00:00:00Z"}[used]
		if got != want || *d.PeriodEnd != *d.ResetTime {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// "Validation", behaviour 3 to 5: each refusal has its code, is a 200 and has no
// usage.
func TestSpecValidateRefusals(t *testing.T) {
	a := newAPI(t)
	plan, user := a.plan(5), a.user("Example Customer")
	inactive, inactiveSecret := a.key(user, plan)
	a.do("PUT", prefix+"/keys/"+inactive, object{"status": "inactive"}).want(200)
	expiring, expiredSecret := a.key(user, plan)
	a.do("PUT", prefix+"/keys/"+expiring, object{"expires_at": "2026-03-14T09:27:00Z"}).want(200)
	a.clock.Pass(time.Minute)
	other := a.user("Disabled")
	_, disabledSecret := a.key(other, plan)
	a.do("PUT", prefix+"/users/"+other, object{"is_disabled": true}).want(200)

	for _, tc := range []struct {
		name, secret string
		code         core.Code
		message      string
		reason       core.Reason
	}{
		{"other prefix", "sk_live_0001", core.CodeInvalidAPIKey, "Invalid API key", "malformed"},
		{"nothing after the prefix", "lk_user_", core.CodeInvalidAPIKey, "Invalid API key", "malformed"},
		{"other characters", "lk_user_abc$", core.CodeInvalidAPIKey, "Invalid API key", "malformed"},
		{"too long", "lk_user_" + strings.Repeat("a", 249), core.CodeInvalidAPIKey, "Invalid API key", "malformed"},
		{"an owner's key", a.owner, core.CodeInvalidAPIKey, "Invalid API key", "malformed"},
		{"unknown", "lk_user_unknown", core.CodeAPIKeyNotFound, "API key not found", "unknown"},
		{"longest that is looked up", "lk_user_" + strings.Repeat("a", 248), core.CodeAPIKeyNotFound, "API key not found", "unknown"},
		{"expired", expiredSecret, core.CodeInvalidAPIKey, "API key has expired", "expired"},
		{"inactive", inactiveSecret, core.CodeAPIKeyDisabled, "API key is disabled", "disabled"},
		{"of a disabled user", disabledSecret, core.CodeAPIKeyDisabled, "API key is disabled", "disabled"},
	} {
		r := a.in(t).validate(tc.secret)
		got, want := r.at(), map[string]any{"success": false, "error": tc.message, "code": string(tc.code), "reason": string(tc.reason)}
		if !maps.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", tc.name, got, want)
		}
	}
}

// "Validation", behaviour 6: a required member that is missing is named.
func TestSpecValidateMissing(t *testing.T) {
	a := newAPI(t)
	whole := object{"api_key": "lk_user_unknown", "endpoint": "/", "method": "GET"}
	for field, message := range map[string]string{
		"api_key": "API key is required", "endpoint": "Endpoint is required", "method": "Method is required",
	} {
		body := maps.Clone(whole)
		delete(body, field)
		r := a.bad("POST", prefix+"/validate", body).wantField(core.CodeInvalidRequest, field)
		if r.at()["success"] != false || r.at()["error"] != "Invalid request" || r.at("details")["message"] != message {
			t.Errorf("got %v, want success false, Invalid request and %q", r, message)
		}
	}
}

// "States and transitions": each move of a user and a plan takes place and shows.
func TestSpecStates(t *testing.T) {
	a := newAPI(t)
	for _, tc := range []struct {
		path, member string
		starts       bool
	}{{"/users/" + a.user("Example Customer"), "is_disabled", false}, {"/plans/" + a.plan(5), "is_active", true}} {
		if got := a.do("GET", prefix+tc.path, nil).want(200).data()[tc.member]; got != tc.starts {
			t.Errorf("%s of a new one: got %v, want %v", tc.member, got, tc.starts)
		}
		for _, value := range []bool{!tc.starts, tc.starts} {
			got := a.do("PUT", prefix+tc.path, object{tc.member: value}).want(200).data()[tc.member]
			if again := a.do("GET", prefix+tc.path, nil).want(200).data()[tc.member]; got != value || again != value {
				t.Errorf("%s: got %v and then %v, want %v", tc.member, got, again, value)
			}
		}
	}
}

// "Usage period reset": each period resets at its boundary in UTC.
func TestSpecPeriods(t *testing.T) {
	for period, reset := range map[string]string{
		"day": "2026-03-15T00:00:00Z", "week": "2026-03-16T00:00:00Z", "month": "2026-04-01T00:00:00Z", "year": "2027-01-01T00:00:00Z",
	} {
		a := newAPI(t)
		plan := a.do("POST", prefix+"/plans", object{"name": period, "max_requests": 1, "request_period": period}).want(201).str("id")
		_, secret := a.key(a.user("Example Customer"), plan)
		a.validate(secret)
		if got := a.validate(secret).at("details")["reset_time"]; got != reset {
			t.Errorf("%s: got the reset %v, want %s", period, got, reset)
		}
		end, _ := time.Parse(time.RFC3339, reset)
		a.clock.Pass(end.Sub(began) - 1)
		if r := a.validate(secret); r.at()["success"] != false {
			t.Errorf("%s: the moment before the reset: got %v, want a denial", period, r)
		}
		a.clock.Pass(1)
		if r := a.validate(secret); r.at()["success"] != true {
			t.Errorf("%s: at the reset: got %v, want success", period, r)
		}
	}
}

// "Pagination": page 1 and limit 10 unless asked for, and no page longer than 100.
func TestSpecPagination(t *testing.T) {
	a := newAPI(t)
	plan, user := a.plan(1_000_000), a.user("Example Customer")
	for range 119 {
		a.user("Another")
		a.key(user, plan)
	}
	_, secret := a.key(user, plan)
	for range 120 {
		a.validate(secret)
	}
	paths := []string{"/users", "/keys", "/users/" + user + "/keys", "/plans/" + plan + "/keys", "/users/" + user + "/requests"}
	for _, path := range paths {
		for query, want := range map[string]int{"": 10, "?limit=7": 7, "?limit=100": 100, "?limit=101": 100, "?limit=9999999999999999999999": 100,
			"?page=2": 10, "?page=12": 10, "?page=13": 0, "?page=99999999999999999999": 0, "?page=2&limit=100": 20, "?page=9223372036854775807&limit=100": 0} {
			r := a.bad("GET", prefix+path+query, nil).want(200) // kin-openapi reads no isNumber beyond int64
			var got, count int
			if strings.HasSuffix(path, "/requests") {
				got, count = len(r.data()["requests"].([]any)), intOf(r.data()["count"])
			} else {
				got, count = len(r.items()), intOf(r.at()["count"])
			}
			if got != want || count != 120 {
				t.Errorf("%s%s: got %d of %d, want %d of 120", path, query, got, count, want)
			}
		}
	}
}

func intOf(v any) int {
	n, _ := v.(json.Number).Int64()
	return int(n)
}

// "Pagination": pages tile the list, oldest first.
func TestSpecPagesTile(t *testing.T) {
	a := newAPI(t)
	var want, got []string
	for range 25 {
		want = append(want, a.user("Example Customer"))
	}
	for page := 1; page <= 4; page++ {
		for _, u := range a.do("GET", fmt.Sprintf("%s/users?page=%d&limit=7", prefix, page), nil).want(200).items() {
			got = append(got, fmt.Sprint(u["user_id"]))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// "Users": the email filter matches the whole address, in any case.
func TestSpecEmailFilter(t *testing.T) {
	a := newAPI(t)
	a.do("POST", prefix+"/users", object{"name": "One", "email": "One@Example.com"}).want(201)
	a.do("POST", prefix+"/users", object{"name": "Two", "email": "two@example.com"}).want(201)
	for query, want := range map[string]int{"one@example.com": 1, "ONE@EXAMPLE.COM": 1, "One%40Example.com": 1, "example.com": 0, "on": 0} {
		r := a.do("GET", prefix+"/users?email="+query, nil).want(200)
		if got := len(r.items()); got != want || intOf(r.at()["count"]) != want {
			t.Errorf("%s: got %v, want %d", query, r, want)
		}
	}
	if got := a.do("GET", prefix+"/users?email=one@example.com", nil).items()[0]["email"]; got != "One@Example.com" {
		t.Errorf("email: got %v, want it as it was given", got)
	}
}

// The filter by external id matches the whole id, byte by byte. With an email, both must match.
func TestExternalIDFilter(t *testing.T) {
	a := newAPI(t)
	long := fill("ä", 2*255)
	a.do("POST", prefix+"/users", object{"name": "One", "email": "one@example.com", "external_id": " Cus/1 & Co "}).want(201)
	a.do("POST", prefix+"/users", object{"name": "Two", "external_id": "cus/1 & co"}).want(201)
	a.do("POST", prefix+"/users", object{"name": "Three", "external_id": long}).want(201)
	a.do("POST", prefix+"/users", object{"name": "Four"}).want(201)
	for query, want := range map[string]string{
		"external_id=Cus%2F1+%26+Co": "One", "external_id=cus/1+%26+co": "Two", "external_id=" + url.QueryEscape(long): "Three",
		"external_id=Cus": "", "external_id=+Cus%2F1+%26+Co": "", "external_id=CUS%2F1+%26+Co": "",
		"external_id=Cus%2F1+%26+Co&email=ONE@example.com": "One", "external_id=cus%2F1+%26+co&email=one@example.com": "",
	} {
		r, got := a.do("GET", prefix+"/users?"+query, nil).want(200), ""
		for _, u := range r.items() {
			got += u["name"].(string)
		}
		if got != want || intOf(r.at()["count"]) != len(r.items()) {
			t.Errorf("%s: got %v, want %q", query, r, want)
		}
	}
	taken := object{"external_id": "Cus/1 & Co"}
	a.do("PUT", prefix+"/users/2", taken).wantField(core.CodeValidation, "external_id")
	a.do("PUT", prefix+"/users/1", taken).want(200)
	a.do("PUT", prefix+"/users/1", object{"external_id": nil}).want(200)
	if got := a.do("PUT", prefix+"/users/2", taken).want(200).data()["external_id"]; got != "Cus/1 & Co" {
		t.Errorf("external_id: got %v, want it as it was given", got)
	}
}

// "Errors": each code comes from where the table says, with its status.
func TestSpecErrors(t *testing.T) {
	a := newAPI(t)
	a.do("POST", prefix+"/users", object{"name": "One", "email": "one@example.com"}).want(201)

	a.bad("GET", prefix+"/users", nil, with("Authorization", "Bearer lk_wrong")).wantCode(401, core.CodeInvalidAPIKey)
	a.bad("GET", prefix+"/users", nil, with("Authorization", "")).wantCode(401, core.CodeUnauthorized)
	a.do("POST", prefix+"/users", object{"name": "x", "email": "no address"}).wantField(core.CodeValidation, "email")
	for _, n := range []int{0, -1} {
		a.bad("POST", prefix+"/plans", object{"name": "x", "max_requests": n, "request_period": "day"}).
			wantField(core.CodeValidation, "max_requests")
	}
	a.bad("POST", prefix+"/plans", object{"name": "x", "max_requests": 1, "request_period": "hour"}).wantField(core.CodeValidation, "request_period")
	a.bad("GET", prefix+"/nothing", nil).wantCode(404, core.CodeNotFound)
	a.do("GET", prefix+"/users/99", nil).wantCode(404, core.CodeUserNotFound)
	a.do("GET", prefix+"/plans/plan_x", nil).wantCode(404, core.CodePlanNotFound)
	a.do("GET", prefix+"/keys/key_x", nil).wantCode(404, core.CodeAPIKeyNotFound)
	a.do("POST", prefix+"/users", object{"name": "x", "email": "ONE@example.com"}).wantField(core.CodeDuplicateEmail, "email")
	a.do("POST", prefix+"/keys", object{"name": "x", "user_id": 99}).wantCode(404, core.CodeUserNotFound)
	a.do("POST", prefix+"/keys", object{"name": "x", "user_id": 1, "plan_id": "plan_x"}).wantCode(404, core.CodePlanNotFound)
	a.do("POST", prefix+"/keys", object{"name": "x", "user_id": 1}).wantField(core.CodeValidation, "plan_id")
	a.bad("PATCH", prefix+"/users", nil).wantCode(405, core.CodeMethodNotAllowed)
	// RATE_LIMIT_EXCEEDED is in throttle_test.go; the codes of validations are above.
}

// "Authentication": only HTTPS is accepted, before anything else is checked. GET /health says
// nothing that is secret, and answers load balancers that ask over plain HTTP.
func TestSpecHTTPSOnly(t *testing.T) {
	secure := false
	a := newAPI(t, func(c *adminapi.Config) { c.Secure = func(*http.Request) bool { return secure } })
	for _, path := range []string{"/users", "/openapi.yaml", "/nothing", "/users?x=1"} {
		a.bad("GET", prefix+path, nil, with("Authorization", "")).wantField(core.CodeInvalidRequest, "scheme")
		a.bad("GET", prefix+path, nil).wantField(core.CodeInvalidRequest, "scheme")
	}
	for _, path := range []string{"/health", "/health/ready", "/health/live"} {
		if got := string(a.do("GET", prefix+path, nil, with("Authorization", "")).want(200).body); got != `{"status":"ok"}`+"\n" {
			t.Errorf("%s over plain HTTP: got %s", path, got)
		}
		a.bad("HEAD", prefix+path, nil).want(200)
	}
	secure = true
	a.do("GET", prefix+"/users", nil).want(200)
}

// "Response envelope": an empty list is an empty array.
func TestSpecEmptyLists(t *testing.T) {
	a := newAPI(t)
	plan, user := a.plan(5), a.user("Example Customer")
	key, _ := a.key(user, plan)
	b := a.as(a.account("other"))
	lonely, bare := b.user("Lonely"), b.plan(5)
	for path, want := range map[string]string{
		"/keys":                          `{"data":[],"count":0}`,
		"/users?email=x@example.com":     `{"data":[],"count":0}`,
		"/users?external_id=cus_x":       `{"data":[],"count":0}`,
		"/users/" + lonely + "/keys":     `{"data":[],"count":0}`,
		"/plans/" + bare + "/users":      `{"data":[],"count":0}`,
		"/plans/" + bare + "/keys":       `{"data":[],"count":0}`,
		"/users/" + lonely + "/requests": `{"data":{"requests":[],"count":0}}`,
	} {
		if got := string(b.do("GET", prefix+path, nil).want(200).body); got != want+"\n" {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
	if got, want := string(a.do("GET", prefix+"/keys/"+key+"/requests", nil).want(200).body), `{"data":{"requests":[],"count":0}}`; got != want+"\n" {
		t.Errorf("requests: got %s, want %s", got, want)
	}
}

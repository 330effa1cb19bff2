package adminapi_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/limitkeeper/limitkeeper/core"
)

// fill returns text repeated to n bytes.
func fill(text string, n int) string { return strings.Repeat(text, n/len(text)+1)[:n] }

// A malformed or ambiguous body is refused with 400.
func TestBodyFaults(t *testing.T) {
	a := newAPI(t)
	for _, tc := range []struct{ name, body, field, message string }{
		{"too long", `{"name":"` + fill("a", 64<<10) + `"}`, "body", "Body must be at most 64 KiB"},
		{"too long by one", fill(" ", 64<<10-12) + `{"name":"ab"}`, "body", "Body must be at most 64 KiB"},
		{"broken UTF-8", "{\"name\":\"\xff\"}", "body", "Body must be valid UTF-8"},
		{"overlong UTF-8", "{\"name\":\"\xc0\xaf\"}", "body", "Body must be valid UTF-8"},
		{"surrogate in UTF-8", "{\"name\":\"\xed\xa0\x80\"}", "body", "Body must be valid UTF-8"},
		{"half a surrogate pair, high", `{"name":"\ud800"}`, "body", "Body must not escape half a surrogate pair"},
		{"half a surrogate pair, low", `{"name":"a\udc00b"}`, "body", "Body must not escape half a surrogate pair"},
		{"two high halves", `{"name":"\ud83d\ud83d"}`, "body", "Body must not escape half a surrogate pair"},
		{"high half before another escape", `{"name":"\ud83d\n"}`, "body", "Body must not escape half a surrogate pair"},
		{"byte order mark", "\ufeff" + `{"name":"a"}`, "body", "Body must be valid JSON"},
		{"cut off", `{"name":"a"`, "body", "Body must be valid JSON"},
		{"two objects", `{"name":"a"}{"name":"b"}`, "body", "Body must be valid JSON"},
		{"trailing garbage", `{"name":"a"} x`, "body", "Body must be valid JSON"},
		{"trailing comma", `{"name":"a",}`, "body", "Body must be valid JSON"},
		{"comment", `{"name":"a"} // b`, "body", "Body must be valid JSON"},
		{"single quotes", `{'name':'a'}`, "body", "Body must be valid JSON"},
		{"control character", "{\"name\":\"a\nb\"}", "body", "Body must be valid JSON"},
		{"NaN", `{"name":NaN}`, "body", "Body must be valid JSON"},
		{"leading zero", `{"user_id":01}`, "body", "Body must be valid JSON"},
		{"array", `[]`, "body", "Body must be a JSON object"},
		{"string", `"name"`, "body", "Body must be a JSON object"},
		{"null", `null`, "body", "Body must be a JSON object"},
		{"twice", `{"name":"a","name":"a"}`, "name", "Must not be given twice"},
		{"twice, once escaped", `{"name":"a","n\u0061me":"b"}`, "name", "Must not be given twice"},
		{"unknown twice", `{"name":"a","x":1,"x":2}`, "x", "Must not be given twice"},
		{"without a name twice", `{"name":"a","":1,"":2}`, "body", "Must not be given twice"},
		{"long name twice", `{"` + fill("ä", 9000) + `":1,"` + fill("ä", 9000) + `":2}`, fill("ä", 64), "Must not be given twice"},
		{"twice inside", `{"name":"a","metadata":{"b":[{"c":1,"c":2}]}}`, "metadata", "Must not be given twice"},
		{"deep", `{"name":"a","metadata":` + fill("[", 33) + fill("]", 33) + `}`, "metadata", "Must not be nested that deeply"},
		{"very deep", `{"name":"a","x":` + fill("[", 9000) + fill("]", 9000) + `}`, "x", "Must not be nested that deeply"},
		{"deeper than any reader goes", fill("[", 30000) + fill("]", 30000), "body", "Body must be valid JSON"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := a.in(t).bad("POST", prefix+"/users", tc.body).wantField(core.CodeInvalidRequest, tc.field)
			if got := r.at("details")["message"]; got != tc.message || r.at()["error"] != "Invalid request" {
				t.Errorf("message: got %v, want %q", r, tc.message)
			}
		})
	}
	if got := a.do("GET", prefix+"/users", nil).at()["count"]; intOf(got) != 0 {
		t.Errorf("users made: got %v, want 0", got)
	}
}

// A surrogate pair is accepted, and an escaped backslash before a u starts no escape.
func TestSurrogatePairs(t *testing.T) {
	a := newAPI(t)
	for body, want := range map[string]string{
		`{"name":"\ud83d\ude00"}`:   "\U0001F600",
		`{"name":"\\ud800"}`:        `\ud800`,
		`{"name":"\\\ud83d\ude00"}`: "\\\U0001F600",
	} {
		got := a.do("POST", prefix+"/users", body).want(201).data()["name"]
		if got != want {
			t.Errorf("%s: got name %q, want %q", body, got, want)
		}
	}
}

// Bodies at the limits are accepted.
func TestBodyBounds(t *testing.T) {
	a := newAPI(t)
	for name, body := range map[string]string{
		"64 KiB":                    fill(" ", 64<<10-12) + `{"name":"a"}`,
		"31 deep":                   `{"name":"a","metadata":{"x":` + fill("[", 30) + fill("]", 30) + `}}`,
		"around space":              " \r\n\t{ \"name\" : \"a\" } \n",
		"same name at other depths": `{"name":"a","metadata":{"name":{"name":1}}}`,
		"huge number":               `{"name":"a","metadata":{"x":1e999999}}`,
		"escapes":                   `{"name":"\ud83d\ude00 \u00e9 \"\\ \/","metadata":{"x":"\u0000"}}`,
	} {
		t.Run(name, func(t *testing.T) { a.in(t).bad("POST", prefix+"/users", body).want(201) })
	}
}

// Member names are exact: another case is an unknown member.
func TestMemberNamesAreExact(t *testing.T) {
	newAPI(t).bad("POST", prefix+"/users", `{"Name":"a"}`).wantField(core.CodeValidation, "Name")
}

// An operation refuses an unknown member by its name, and does nothing. Otherwise a typo in
// expires_at would make a key that never expires.
func TestUnknownMembers(t *testing.T) {
	a := newAPI(t)
	plan, user := a.plan(5), a.user("Example Customer")
	key, secret := a.key(user, plan)
	names := strings.NewReplacer("SECRET", secret, "KEY", key, "PLAN", plan)
	for _, b := range bodies {
		code, text := core.CodeValidation, names.Replace(b.body)
		if b.path == "/validate" {
			code = core.CodeInvalidRequest
		}
		for _, tc := range []struct{ member, field string }{
			{`"expire_at":"2030-01-01T00:00:00Z"`, "expire_at"},
			{`"custom_begin":"2026-03-01"`, "custom_begin"},
			{`"z":1,"a":2,"m":3`, "z"}, // the first in the body
			{`"":null`, "body"},
			{`"\u0041":{}`, "A"},
			{`"` + secret + `":1`, "lk_***"},
			{`"` + fill("b", 70) + `":1`, fill("b", 64)},
		} {
			r := a.in(t).bad(b.method, prefix+names.Replace(b.path), strings.TrimSuffix(text, "}")+","+tc.member+"}").wantField(code, tc.field)
			if got := r.at("details")["message"]; got != "Unknown member" {
				t.Errorf("%v: got the message %v", r, got)
			}
		}
	}
	for path, want := range map[string]int{"/users": 1, "/keys": 1, "/plans": 1} {
		if got := intOf(a.do("GET", prefix+path, nil).at()["count"]); got != want {
			t.Errorf("%s: got %d, want %d", path, got, want)
		}
	}
	if got := a.validate(secret).at("details")["current_usage"]; intOf(got) != 1 {
		t.Errorf("usage after nothing but faults: got %v, want 1", got)
	}
}

// Creating a resource takes none of the read-only members: the resource would get another id
// than the caller gave. A new user starts enabled, so is_disabled is refused too.
func TestUnknownMembersOfCreation(t *testing.T) {
	a := newAPI(t)
	plan, user := a.plan(5), a.user("Example Customer")
	for _, tc := range []struct{ path, rest, members string }{
		{"/keys", `"name":"a","user_id":` + user + `,"plan_id":"` + plan + `"`, "id hint api_key last_used_at last_refused_at created_at updated_at"},
		{"/users/" + user + "/keys", `"name":"a","plan_id":"` + plan + `"`, "id hint api_key last_used_at last_refused_at created_at updated_at"},
		{"/plans", `"name":"a","max_requests":1,"request_period":"day"`, "id created_at updated_at"},
		{"/users", `"name":"a"`, "user_id is_disabled created_at updated_at"},
	} {
		for member := range strings.FieldsSeq(tc.members) {
			a.in(t).bad("POST", prefix+tc.path, `{`+tc.rest+`,"`+member+`":"acme_live_1"}`).wantField(core.CodeValidation, member)
		}
	}
	a.bad("POST", prefix+"/users/"+user+"/keys", `{"name":"a","plan_id":"`+plan+`","user_id":2}`).wantField(core.CodeValidation, "user_id")
	if got := intOf(a.do("GET", prefix+"/keys", nil).at()["count"]); got != 0 {
		t.Errorf("keys made: got %d, want 0", got)
	}
}

// GET, change, PUT works with the whole object of the answer: PUT ignores the read-only
// members. The key may have expired, an override of the user may have ended, the plan may be inactive, and the answer may be the one
// that shows the value of the key.
func TestAnswersCanBeSentBack(t *testing.T) {
	a := newAPI(t)
	plan := a.plan(5)
	user := a.do("POST", prefix+"/users", object{"name": "a", "email": "a@example.com", "external_id": "cus_1", "plan_id": plan, "metadata": object{"a": 1},
		"overrides": []object{{"meter": "requests", "max": 9, "period": "day", "until": "2026-03-14T10:00:00.5Z"}}}).want(201).data()
	created := a.do("POST", prefix+"/keys", object{"name": "a", "user_id": user["user_id"], "plan_id": plan,
		"expires_at": "2026-03-14T10:00:00Z", "metadata": object{"a": 1}}).want(201).data()
	again := a.do("POST", prefix+"/keys/"+created["id"].(string)+"/regenerate", object{"grace_seconds": 60}).want(200).data()
	a.do("PUT", prefix+"/plans/"+plan, object{"is_active": false}).want(200)
	a.clock.Pass(59 * time.Second)
	put := func(path string, o object) {
		t.Helper()
		o["name"] = "b"
		got := a.do("PUT", prefix+path, o).want(200).data()
		delete(o, "api_key")
		for name, want := range o {
			if name != "updated_at" && !cmp.Equal(got[name], want) {
				t.Errorf("PUT %s: %s: got %v, want %v", path, name, got[name], want)
			}
		}
	}
	keyPath := "/keys/" + created["id"].(string)
	put(keyPath, created)
	put(keyPath, again)
	a.clock.Pass(time.Hour)
	for _, path := range []string{keyPath, "/plans/" + plan, "/users/" + user["user_id"].(json.Number).String()} {
		put(path, a.do("GET", prefix+path, nil).want(200).data())
	}
	for _, v := range []string{`"acme_live_1"`, `"` + fill("lk_user_a", 40) + `"`, `""`, `null`, `5`} {
		a.bad("PUT", prefix+keyPath, `{"api_key":`+v+`}`).wantField(core.CodeValidation, "api_key")
	}
	a.bad("PUT", prefix+keyPath, `{"expires_at":"2026-03-14T10:00:00.001Z"}`).wantField(core.CodeValidation, "expires_at")
}

// An override that has ended is refused when it is new or changed: it would change nothing, and nobody would notice.
func TestEndedOverrides(t *testing.T) {
	a := newAPI(t)
	const old = `{"meter":"requests","max":9,"period":"day","until":"2026-03-14T10:00:00Z"}`
	user := prefix + "/users/" + fmt.Sprint(a.do("POST", prefix+"/users", `{"name":"a","overrides":[`+old+`]}`).want(201).data()["user_id"])
	a.clock.Pass(time.Hour)
	for _, list := range []string{
		`{"meter":"requests","max":10,"period":"day","until":"2026-03-14T10:00:00Z"}`,
		`{"meter":"requests","max":9,"period":"week","until":"2026-03-14T10:00:00Z"}`,
		`{"meter":"requests","max":9,"period":"day","until":"2026-03-14T10:00:01Z"}`,
		old + `,{"meter":"tokens","max":9,"period":"day","until":"1970-01-01T00:00:00Z"}`,
	} {
		a.bad("PUT", user, `{"overrides":[`+list+`]}`).wantField(core.CodeValidation, "overrides")
		a.bad("POST", prefix+"/users", `{"name":"b","overrides":[`+list+`]}`).wantField(core.CodeValidation, "overrides")
	}
	for _, list := range []string{`{"meter":"tokens","max":9,"period":"day"},` + old, strings.Replace(old, "Z", "+00:00", 1), strings.Replace(old, "14T", "15T", 1), ``} {
		a.do("PUT", user, `{"overrides":[`+list+`]}`).want(200)
	}
}

// The message about a member inside another one has its path. Otherwise "Unknown member" would not say which.
func TestInnerMembers(t *testing.T) {
	a := newAPI(t)
	for body, want := range map[string]string{
		`{"name":"a","overrides":[{"meter":"requests","max":9,"period":"day","on_exceed":"allow"}]}`:                          "overrides[0].on_exceed: Unknown member",
		`{"name":"a","overrides":[{"max":9,"period":"day"}]}`:                                                                 "overrides[0]: A limit has a meter, a max and a period",
		`{"name":"a","overrides":[{"meter":"requests","max":9,"period":"day","until":"2026-03-14"}]}`:                         "overrides[0].until: Must be a time as in RFC 3339, such as 2030-01-31T00:00:00Z",
		`{"name":"a","overrides":[{"meter":"requests","max":9,"period":"day"},{"meter":"requests","max":9,"period":"days"}]}`: "overrides[1].period: Must be one of minute, hour, day, week, month, year, lifetime",
	} {
		if got := a.bad("POST", prefix+"/users", body).wantField(core.CodeValidation, "overrides").at("details")["message"]; got != want {
			t.Errorf("%s: got the message %v, want %s", body, got, want)
		}
	}
}

// A published client sends an object named context with a validation. It has no effect.
func TestContextOfValidation(t *testing.T) {
	a := newAPI(t)
	_, secret := a.key(a.user("Example Customer"), a.plan(5))
	r := a.do("POST", prefix+"/validate", object{"api_key": secret, "endpoint": "/", "method": "GET", "context": object{"session": "1"}}).want(200)
	if r.at()["success"] != true {
		t.Errorf("got %v, want success", r)
	}
}

// A body without a content type is JSON. Another content type is refused, and the error names it.
func TestContentType(t *testing.T) {
	a := newAPI(t)
	for value, ok := range map[string]bool{
		"application/json":                  true,
		"Application/JSON":                  true,
		"application/json; charset=utf-8":   true,
		`application/json; charset="UTF-8"`: true,
		"":                                  true,
		"text/plain":                        false,
		"text/json":                         false,
		"application/problem+json":          false,
		"application/x-www-form-urlencoded": false,
		"multipart/form-data; boundary=x":   false,
		"application/json; charset=latin1":  false,
		"application/json; charset=utf-8; charset=latin1": false,
		"application":   false,
		";":             false,
		"application/*": false,
		"*/*":           false,
	} {
		r := a.bad("POST", prefix+"/users", `{"name":"a"}`, with("Content-Type", value))
		if ok {
			r.want(201)
		} else {
			r.wantField(core.CodeInvalidRequest, "Content-Type")
		}
	}
}

// An empty body is an object without members, whatever its content type. The error names a missing required
// member.
func TestEmptyBody(t *testing.T) {
	a := newAPI(t)
	plan, user := a.plan(5), a.user("Example Customer")
	key, _ := a.key(user, plan)
	form := with("Content-Type", "application/x-www-form-urlencoded")
	for _, body := range []string{"", " \n"} {
		a.bad("POST", prefix+"/keys/"+key+"/regenerate", body, form).want(200)
		a.bad("PUT", prefix+"/users/"+user, body, form).want(200)
		a.bad("PUT", prefix+"/plans/"+plan, body, form).want(200)
		a.bad("PUT", prefix+"/keys/"+key, body, form).want(200)
		a.bad("POST", prefix+"/users", body, form).wantField(core.CodeValidation, "name")
		a.bad("POST", prefix+"/validate", body, form).wantField(core.CodeInvalidRequest, "api_key")
	}
}

// brokenReader fails in the middle of a body.
type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }
func (brokenReader) Close() error             { return nil }

// A truncated body is answered with 400, not with 500.
func TestBodyBreaksOff(t *testing.T) {
	a := newAPI(t)
	r := a.newRequest("POST", prefix+"/users", `{"name":"a"}`)
	r.Body = brokenReader{}
	a.record(r).wantField(core.CodeInvalidRequest, "body")
}

// Every endpoint names a member with a wrong type or a value out of range.
func TestMemberFaults(t *testing.T) {
	limit := func(meter, max, period string) string {
		return `{"meter":` + meter + `,"max":` + max + `,"period":` + period + `}`
	}
	good := limit(`"tokens"`, `5`, `"day"`)
	badLimits := []string{`5`, `"a"`, `{}`, `[5]`, `[null]`, `[{}]`, `[[]]`, `[` + good + `,` + good + `]`, `[` + strings.Repeat(good+`,`, 400) + good + `]`,
		`[` + limit(`"Tokens"`, `5`, `"day"`) + `]`, `[` + limit(`"`+fill("a", 33)+`"`, `5`, `"day"`) + `]`, `[` + limit(`null`, `5`, `"day"`) + `]`,
		`[` + limit(`"tokens"`, `0`, `"day"`) + `]`, `[` + limit(`"tokens"`, `9007199254740992`, `"day"`) + `]`, `[` + limit(`"tokens"`, `null`, `"day"`) + `]`,
		`[` + limit(`"tokens"`, `1.5`, `"day"`) + `]`, `[` + limit(`"tokens"`, `5`, `"second"`) + `]`, `[` + limit(`"tokens"`, `5`, `null`) + `]`,
		`[{"meter":"tokens","max":5}]`, `[{"meter":"tokens","max":5,"period":"day","more":1}]`}
	a := newAPI(t)
	plan, user := a.plan(5), a.user("Example Customer")
	key, secret := a.key(user, plan)

	name := []string{`5`, `true`, `[]`, `{}`, `""`, `"  "`, `null`, `"` + fill("a", 256) + `"`}
	numbers := []string{`"5"`, `1.5`, `null`, `true`, `[]`, `{}`, `0.1e0`, `15e-1`, `1e-999999999`}
	metadata := []string{`5`, `"{}"`, `[]`, `true`, `{"a":"` + fill("a", 4096) + `"}`}
	status := []string{`5`, `null`, `"Active"`, `"deleted"`, `""`}
	times := []string{`5`, `true`, `""`, `"tomorrow"`, `"2030-01-01"`, `"2030-01-01T00:00:00"`, `"2030-02-30T00:00:00Z"`,
		`"2020-01-01T00:00:00Z"`, `"2026-03-14T09:26:53.589Z"`, `"9999-12-31T23:59:59-23:59"`, `"0000-01-01T00:00:00+23:59"`, `"+2030-01-01T00:00:00Z"`}
	flags := []string{`0`, `"true"`, `null`, `[]`}
	keyMembers := map[string][]string{"name": name, "status": status, "expires_at": times, "metadata": metadata, "plan_id": {`5`, `[]`, `true`}}
	keyAndUser := map[string][]string{"user_id": numbers}
	for n, v := range keyMembers {
		keyAndUser[n] = v
	}
	planMembers := map[string][]string{
		"name": name, "description": {`5`, `[]`, `"` + fill("ä", 2*4097) + `"`}, "is_active": flags,
		"max_requests":   append([]string{`0`, `-1`, `9007199254740992`, `1e400`, `-1e400`, `9223372036854775808`}, slices.DeleteFunc(slices.Clone(numbers), func(n string) bool { return n == `null` })...),
		"limits":         badLimits,
		"request_period": {`5`, `null`, `""`, `"Month"`, `"hour"`},
		"features":       {`5`, `"a"`, `{}`, `[5]`, `[null]`, `["a",[]]`, `["` + fill("a", 256) + `"]`, `[` + fill(`"a",`, 400) + `"a"]`},
	}
	userMembers := map[string][]string{"name": name, "email": {`5`, `[]`, `""`, `"a"`, `"a@"`, `"A <a@b>"`, `"a@b, c@d"`, `" a@b"`, `"` + fill("a", 255) + `@b"`},
		"external_id": {`5`, `[]`, `""`, `" "`, `"a\u0000"`, `"` + fill("ä", 2*256) + `"`}, "plan_id": {`5`, `{}`}, "metadata": metadata,
		"custom_start": {`5`, `true`, `""`, `"tomorrow"`, `"2030-02-30"`, `"2030-01-01T00:00:00"`, `"1969-12-31"`, `"9999-12-31T23:59:59-23:59"`}}

	for _, tc := range []struct {
		method, path, rest string
		members            map[string][]string
	}{
		{"POST", "/keys", `"name":"a","user_id":1,"plan_id":"` + plan + `"`, keyAndUser},
		{"PUT", "/keys/" + key, ``, keyAndUser},
		{"POST", "/users/" + user + "/keys", `"name":"a","plan_id":"` + plan + `"`, keyMembers},
		{"POST", "/keys/" + key + "/regenerate", ``, map[string][]string{"grace_seconds": append([]string{`-1`, `604801`, `1e400`, `-1e400`}, numbers...)}},
		{"POST", "/plans", `"name":"a","max_requests":1,"request_period":"day"`, planMembers},
		{"PUT", "/plans/" + plan, ``, planMembers},
		{"POST", "/users", `"name":"a"`, userMembers},
		{"PUT", "/users/" + user, ``, userMembers},
		{"PUT", "/users/" + user, ``, map[string][]string{"is_disabled": flags}},
	} {
		for member, values := range tc.members {
			for _, v := range values {
				a.in(t).bad(tc.method, prefix+tc.path, without(tc.rest, member, v)).wantField(core.CodeValidation, member)
			}
		}
	}
	rest := `"api_key":"` + secret + `","endpoint":"/","method":"GET"`
	for member, values := range map[string][]string{
		"api_key":    {`5`, `null`, `""`, `[]`},
		"endpoint":   {`5`, `null`, `""`, `{}`, `"` + fill("a", 2049) + `"`},
		"method":     {`5`, `null`, `""`, `true`, `"` + fill("a", 33) + `"`},
		"ip_address": {`5`, `null`, `[]`, `"` + fill("1", 129) + `"`},
		"cost":       append([]string{`-1`, `1000001`, `1e400`, `-1e400`}, numbers...),
		"request_id": {`5`, `true`, `[]`, `{}`, `["a"]`, `""`, `"` + fill("a", 129) + `"`, `"` + fill("é", 130) + `"`, `"a\nb"`, `"\u0000"`, `"\u0085"`,
			`"` + secret + `"`, `"my key ` + secret + `"`},
	} {
		for _, v := range values {
			a.in(t).bad("POST", prefix+"/validate", without(rest, member, v)).wantField(core.CodeInvalidRequest, member)
		}
	}
	if got := a.validate(secret).at("details")["current_usage"]; intOf(got) != 1 {
		t.Errorf("usage after nothing but faults: got %v, want 1", got)
	}
}

// without returns an object with the members of rest but one, which is v.
func without(rest, member, v string) string {
	members := []string{`"` + member + `":` + v}
	for m := range strings.SplitSeq(rest, ",") {
		if m != "" && !strings.HasPrefix(m, `"`+member+`"`) {
			members = append(members, m)
		}
	}
	return "{" + strings.Join(members, ",") + "}"
}

// A whole number is accepted in every JSON notation.
func TestWholeNumbers(t *testing.T) {
	a := newAPI(t)
	for v, want := range map[string]string{"1e3": "1000", "5.0": "5", "500e-2": "5", "0.5E1": "5", "9007199254740991": "9007199254740991", "9007199254740991.000": "9007199254740991"} {
		r := a.do("POST", prefix+"/plans", `{"name":"a","request_period":"day","max_requests":`+v+`}`).want(201)
		if got := r.data()["max_requests"]; got != jsonNumber(want) {
			t.Errorf("%s: got %v, want %s", v, got, want)
		}
	}
}

// null clears an optional member on PUT and is the same as leaving it out on POST.
func TestNull(t *testing.T) {
	a := newAPI(t)
	plan := a.plan(5)
	r := a.do("POST", prefix+"/users", `{"name":"a","email":null,"external_id":null,"plan_id":null,"metadata":null}`).want(201)
	a.do("PUT", prefix+"/users/1", object{"email": "a@example.com", "external_id": "cus_1", "plan_id": plan, "metadata": object{"a": 1}}).want(200)
	cleared := a.do("PUT", prefix+"/users/1", `{"email":null,"external_id":null,"plan_id":null,"metadata":null}`).want(200)
	for _, m := range []string{"email", "external_id", "plan_id", "metadata"} {
		if r.data()[m] != nil || cleared.data()[m] != nil {
			t.Errorf("%s: got %v and %v, want null", m, r.data()[m], cleared.data()[m])
		}
	}
	a.do("POST", prefix+"/plans", `{"name":"a","max_requests":1,"request_period":"day","description":null,"features":null}`).want(201)
	got := a.do("PUT", prefix+"/plans/"+plan, `{"description":null,"features":null}`).want(200).data()
	if got["description"] != nil || len(got["features"].([]any)) != 0 {
		t.Errorf("got %v, want description null and no features", got)
	}
	a.do("POST", prefix+"/keys", object{"name": "a", "user_id": 1, "plan_id": plan, "expires_at": nil, "metadata": nil}).want(http.StatusCreated)
}

// Metadata is returned unchanged.
func TestMetadataRoundTrip(t *testing.T) {
	a := newAPI(t)
	const metadata = `{"b":1e999,"a":[1.50,{"":null}],"html":"<&>","ü":"\ud83d\ude00"}`
	r := a.bad("POST", prefix+"/users", `{"name":"a","metadata":`+metadata+`}`).want(201)
	want := strings.NewReplacer("<", `\u003c`, "&", `\u0026`, ">", `\u003e`).Replace(metadata)
	if !strings.Contains(string(r.body), want) {
		t.Errorf("got %s, want %s in it", r.body, want)
	}
}

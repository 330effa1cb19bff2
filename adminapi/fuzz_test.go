package adminapi_test

import (
	"bufio"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// bodies are the operations that read a body, each with one that it takes.
var bodies = []struct{ method, path, body string }{
	{"POST", "/validate", `{"api_key":"SECRET","endpoint":"/","method":"GET","ip_address":"203.0.113.7","cost":1,"request_id":"a"}`},
	{"POST", "/validate", `{"api_key":"SECRET","endpoint":"/chat","method":"POST","costs":{"requests":2},"model":"m1","usage":{"input":1e9,"output":0}}`},
	{"PUT", "/prices", `{"rules":[{"endpoint":"GET,POST /chat*","model":"m*","costs":{"requests":2,"tokens":"1000000000*input + output"}}],"updated_at":null}`},
	{"POST", "/prices/quote", `{"endpoint":"/chat","method":"POST","model":"m1","usage":{"input":1,"output":2}}`},
	{"POST", "/keys", `{"name":"a","user_id":1,"plan_id":"PLAN","status":"active","expires_at":"2030-01-01T00:00:00Z","metadata":{"a":[1]}}`},
	{"PUT", "/keys/KEY", `{"name":"a","user_id":1,"plan_id":null,"status":"inactive","expires_at":null,"metadata":null}`},
	{"POST", "/webhooks", `{"url":"https://example.com/hook","events":["limitkeeper.forecast"],"description":null,"is_active":true}`},
	{"POST", "/keys/KEY/regenerate", `{"grace_seconds":60}`},
	{"POST", "/users", `{"name":"a","email":"a@example.com","external_id":"cus_1","plan_id":null,"metadata":{}}`},
	{"PUT", "/users/1", `{"name":"a","email":null,"external_id":null,"plan_id":"PLAN","metadata":null,"is_disabled":true}`},
	{"POST", "/users/1/keys", `{"name":"a"}`},
	{"POST", "/plans", `{"name":"a","description":"b","max_requests":1e3,"request_period":"day","is_active":true,"features":["a"]}`},
	{"PUT", "/plans/PLAN", `{"name":"a","description":null,"max_requests":5.0,"request_period":"year","is_active":false,"features":null}`},
}

// holdLaw fails for a redirect or a 5xx answer. check has validated the answer against the contract.
func holdLaw(t *testing.T, r *result) {
	t.Helper()
	if r.status >= 500 || r.status >= 300 && r.status < 400 {
		t.Errorf("%v\ngot %d", r.exchange, r.status)
	}
}

// No body causes a 5xx answer, and every answer matches the contract.
func FuzzBody(f *testing.F) {
	for i, b := range bodies {
		f.Add(uint8(i), []byte(b.body))
	}
	for _, s := range []string{"", "{}", "[", `{"name":"a","name":"a"}`, "{\"name\":\"\xff\"}", `{"name":"\ud800"}`, `{"name":1e999999999}`,
		`{"expires_at":"9999-12-31T23:59:59-23:59"}`, `{"cost":-0.0}`, `{"":1,"":1}`, `{"metadata":[[[[]]]]}`} {
		f.Add(uint8(len(s)), []byte(s))
	}
	a := newAPI(f)
	plan := a.plan(1000)
	user := a.do("POST", prefix+"/users", object{"name": "a", "plan_id": plan}).data()["user_id"]
	key, secret := a.key(user.(interface{ String() string }).String(), plan)
	names := strings.NewReplacer("SECRET", secret, "KEY", key, "PLAN", plan)

	f.Fuzz(func(t *testing.T, which uint8, body []byte) {
		b := bodies[int(which)%len(bodies)]
		r := a.in(t).newRequest(b.method, names.Replace(prefix+b.path), names.Replace(string(body)))
		holdLaw(t, a.in(t).record(r))
	})
}

// No request target causes a 5xx answer, a redirect or the answer of another path.
func FuzzTarget(f *testing.F) {
	for _, target := range []string{"/functions/v1/users/1", "/functions/v1/users/1/../2", "/functions/v1/users/%2e%2e", "/functions/v1//users",
		"/functions/v1/users/+1", "/functions/v1/keys/a%2Fb", "/functions/v1/users?page=1&limit=2&email=a@b.c", "/functions/v1/keys?user_id=1;status=active",
		"/functions/v1/plans?page=99999999999999999999", "*", "//users", "https://example.com/functions/v1/users", "/functions/v1/users/1/requests?limit=%zz"} {
		f.Add(target)
	}
	a := newAPI(f)
	a.key(a.user("Example Customer"), a.plan(5))
	f.Fuzz(func(t *testing.T, target string) {
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader("GET " + target + " HTTP/1.1\r\nHost: localhost\r\n\r\n")))
		if err != nil || r.Method != "GET" || len(r.Header) != 0 {
			t.Skip("no request line")
		}
		r.Header.Set("Authorization", "Bearer "+a.owner)
		res := a.in(t).record(r)
		holdLaw(t, res)
		if res.status == http.StatusOK && slices.ContainsFunc(strings.Split(r.URL.Path, "/")[1:], func(s string) bool { return s == "" || s == "." || s == ".." }) {
			t.Errorf("%v\nserved a path that is not clean", res.exchange)
		}
	})
}

// No Authorization header causes a 5xx answer, and only the owner's key authenticates.
func FuzzAuthorization(f *testing.F) {
	for _, v := range []string{"", "Bearer", "Bearer ", "bearer x y", "Basic eA==", "Bearer lk_AAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "Bearer OWNER", "Bearer\tOWNER"} {
		f.Add(v)
	}
	a := newAPI(f)
	f.Fuzz(func(t *testing.T, value string) {
		value = strings.ReplaceAll(value, "OWNER", a.owner)
		r := a.in(t).newRequest("GET", prefix+"/users", nil)
		r.Header["Authorization"] = []string{value}
		res := a.in(t).record(r)
		words := strings.Fields(value)
		want := http.StatusUnauthorized
		if len(words) == 2 && strings.EqualFold(words[0], "bearer") && words[1] == a.owner {
			want = http.StatusOK
		}
		res.want(want)
	})
}

// values are random values for members: each is valid for some members only.
var values = []string{`null`, `true`, `false`, `0`, `-0.0`, `1`, `-1`, `1e3`, `1.5`, `9007199254740991`, `9223372036854775808`, `1e400`, `-1e400`, `604800`,
	`""`, `" "`, `"a"`, `"PLAN"`, `"KEY"`, `"SECRET"`, `"active"`, `"day"`, `"year"`, `"a@example.com"`, `"\u0000"`, `"\ud800"`, `"äöü\u2028<&>"`,
	`"2030-01-01T00:00:00Z"`, `"9999-12-31T23:59:59.999999999Z"`, `"0000-01-01T00:00:00Z"`, `"2030-01-01T00:00:00.123456789+14:00"`,
	`[]`, `["a"]`, `[null]`, `[[]]`, `{}`, `{"a":{"b":[1e999]}}`, `{"":""}`}

// Objects with members of any type never cause a 5xx answer.
func TestRandomBodies(t *testing.T) {
	a := newAPI(t)
	plan := a.plan(1000)
	a.user("Example Customer")
	key, secret := a.key("1", plan)
	names := strings.NewReplacer("SECRET", secret, "KEY", key, "PLAN", plan)
	rnd := rand.New(rand.NewPCG(3, 4))
	memberName := regexp.MustCompile(`"([a-z_]+)":`)
	served := 0
	for range 1500 {
		b := bodies[rnd.IntN(len(bodies))]
		var members []string
		for _, m := range memberName.FindAllString(b.body, -1) {
			value := values[rnd.IntN(len(values))]
			if rnd.IntN(3) > 0 && (m != `"name":` || value != `"SECRET"`) { // answers show a name as it is
				members = append(members, m+value)
			}
		}
		if rnd.IntN(4) == 0 { // a valid body with random additional members
			members = append([]string{strings.Trim(b.body, "{}")}, `"updated_at":`+values[rnd.IntN(len(values))])
		}
		r := a.record(a.newRequest(b.method, names.Replace(prefix+b.path), names.Replace("{"+strings.Join(members, ",")+"}")))
		holdLaw(t, r)
		if r.status < 300 {
			served++
		}
	}
	if served < 50 {
		t.Errorf("served: got %d, want a good part", served)
	}
}

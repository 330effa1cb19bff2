package adminapi_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/clocktest"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// Ten minutes after a limit of a minute has refused a request, the histories still say which limit it was, 60 of 60, and whose.
func TestRefusingLimit(t *testing.T) {
	t.Run("memstore", func(t *testing.T) { testRefusingLimit(t, memstore.New(), func(time.Duration) {}) })
	t.Run("badgerstore", func(t *testing.T) {
		clock := clocktest.New(began)
		store, err := badgerstore.Open(t.TempDir(), badgerstore.Options{Clock: core.NewClock(clock.Read, nil), Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := store.Close(); err != nil {
				t.Error(err)
			}
		}()
		testRefusingLimit(t, store, clock.Pass)
	})
}

// testRefusingLimit calls pass with each duration that passes.
func testRefusingLimit(t *testing.T, store core.Store, pass func(time.Duration)) {
	a := newAPIOver(t, store)
	advance := func(d time.Duration) { a.clock.Pass(d); pass(d) }
	user, key, secret := a.limitedKey(`"max_requests":1000,"request_period":"month","limits":[{"meter":"requests","max":60,"period":"minute"}]`)
	advance(time.Minute - time.Duration(a.clock.Wall().Second())*time.Second)
	for range 60 {
		a.validateWith(secret, "")
	}
	refused := a.clock.Wall()
	a.validateWith(secret, `,"request_id":"order 4711"`)
	advance(10 * time.Minute)
	a.validateWith(secret, `,"request_id":"order 4712"`)

	want := map[string]any{"of": "plan", "meter": "requests", "period": "minute", "max": json.Number("60"), "used": json.Number("60")}
	for _, path := range []string{"/keys/" + key + "/requests", "/users/" + user + "/requests", "/requests"} {
		list := a.do("GET", prefix+path+"?limit=2", nil).want(200).data()["requests"].([]any)
		later, e := list[0].(map[string]any), list[1].(map[string]any)
		if !reflect.DeepEqual(e["limit"], want) || e["reason"] != "quota" || e["request_id"] != "order 4711" {
			t.Errorf("%s: got %v, want order 4711 refused by 60 of 60 requests a minute of the plan", path, e)
		}
		if _, refused := later["limit"]; refused || later["request_id"] != "order 4712" {
			t.Errorf("%s: got %v, want order 4712 without a limit", path, later)
		}
	}
	lasts := []string{a.clock.Wall().Format("2006-01-02T15:04:05.999Z07:00"), refused.Truncate(time.Second).Format(time.RFC3339)}
	for _, path := range []string{"/keys/" + key, "/keys/" + key + "/usage"} {
		d := a.do("GET", prefix+path, nil).want(200).data()
		if got := []string{fmt.Sprint(d["last_used_at"]), fmt.Sprint(d["last_refused_at"])}; !slices.Equal(got, lasts) {
			t.Errorf("%s: got the last requests %q, want %q", path, got, lasts)
		}
	}
}

// The other refusals have no limit, and a refusal of a disabled key has its request id.
func TestRefusedWithoutLimit(t *testing.T) {
	a := newAPI(t)
	_, key, secret := a.limitedKey(`"max_requests":1000,"request_period":"month","rate":{"requests":1,"per":"minute"}`)
	a.validateWith(secret, `,"request_id":"same"`)
	a.validateWith(secret, `,"request_id":"over the rate"`)
	a.do("PUT", prefix+"/keys/"+key, `{"status":"inactive"}`).want(200)
	a.validateWith(secret, `,"request_id":"same"`)
	got := ""
	for _, r := range a.do("GET", prefix+"/requests", nil).want(200).data()["requests"].([]any) {
		e := r.(map[string]any)
		got += fmt.Sprintf("%v %v %v, ", e["request_id"], e["reason"], e["limit"])
	}
	if want := "same disabled <nil>, over the rate rate <nil>, same <nil> <nil>, "; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// anyHistory makes requests and entries of each kind, and returns the id of the key.
func (a *api) anyHistory() (user, key string) {
	a.t.Helper()
	user, key, secret := a.limitedKey(`"max_requests":4,"request_period":"day","limits":[{"meter":"tokens","max":100,"period":"month"}]`)
	call := func(path, method, members string) *result {
		return a.do("POST", prefix+"/validate", fmt.Sprintf(`{"api_key":%q,"endpoint":%q,"method":%q%s}`, secret, path, method, members)).want(200)
	}
	call("/v1/a", "GET", `,"ip_address":"192.0.2.9","request_id":"=1+1"`)
	call("/v1/b", "POST", `,"costs":{"tokens":60}`)
	call("/v2/a", "POST", `,"costs":{"tokens":60},"request_id":"id, \"quoted\""`) // refused by the tokens
	hold := call("/v2/b", "GET", `,"hold_seconds":60`).at()["hold_id"].(string)
	a.do("POST", prefix+"/holds/"+hold+"/settle", `{"costs":{"tokens":7}}`).want(200)
	a.do("POST", prefix+"/keys/"+key+"/usage/adjust", `{"delta":1,"reason":"-goodwill","request_id":"ticket"}`).want(200)
	call("/v2/c", "GET", "") // refused by the requests
	call("/v2/c", "GET", "")
	a.do("POST", prefix+"/users/"+user+"/usage/adjust", `{"meter":"tokens","set":5,"period":"month","reason":"import"}`).want(200)
	return user, key
}

// Each filter selects the entries with its value. Several filters select the entries that match all of them.
func TestRequestsFilters(t *testing.T) {
	a := newAPI(t)
	user, key := a.anyHistory()
	list := func(query string) (got []string) {
		for _, r := range a.do("GET", prefix+"/requests?"+query, nil).want(200).data()["requests"].([]any) {
			e := r.(map[string]any)
			name := fmt.Sprint(e["endpoint"])
			if kind := e["kind"]; kind != nil {
				name = fmt.Sprint(kind)
			}
			got = append(got, name)
		}
		return got
	}
	for _, tt := range []struct{ query, want string }{
		{"", "[adjust /v2/c /v2/c adjust settle /v2/b /v2/a /v1/b /v1/a]"},
		{"meter=tokens", "[adjust settle /v2/a /v1/b]"}, // without /v2/c, which a limit of requests refused
		{"meter=requests", "[/v2/c /v2/c adjust settle /v2/b /v1/b /v1/a]"},
		{"meter=tokens&reason=quota", "[/v2/a]"},
		{"method=POST", "[/v2/a /v1/b]"},
		{"method=post", "[]"},
		{"ip_address=192.0.2.9", "[/v1/a]"},
		{"request_id=ticket", "[adjust]"},
		{"request_id=id%2C+%22quoted%22", "[/v2/a]"},
		{"request_id=tick", "[]"},
		{"endpoint=/v2/&method=GET&status=denied&key_id=" + key + "&user_id=" + user, "[/v2/c /v2/c]"},
	} {
		if got := fmt.Sprint(list(tt.query)); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.query, got, tt.want)
		}
	}
	a.bad("GET", prefix+"/requests?meter=Tokens", nil).wantField(core.CodeValidation, "meter")
	a.bad("GET", prefix+"/requests?meter=spend", nil).wantField(core.CodeValidation, "meter") // which the account has never had
}

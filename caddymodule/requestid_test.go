package caddymodule

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/limitkeeper/limitkeeper/caddymodule/caddytest"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// keyed gives a site a gateway that takes ids, and the API.
const keyed = "limitkeeper {\nrequest_id header Idempotency-Key\n}\n"

// validateAs asks the API to decide on a request with an id.
func (s *server) validateAs(ten *caddytest.Tenant, id string) caddytest.Reply {
	s.T.Helper()
	body := fmt.Sprintf(`{"api_key":%q,"endpoint":"/x","method":"GET","request_id":%q}`, ten.Secret, id)
	return s.Send(http.MethodPost, APIBase+"/validate", body, "Authorization: Bearer "+ten.Owner, "X-Forwarded-Proto: https")
}

// A request id is counted once, through the gateway and /validate and after a reload, and both return the
// first answer. If this fails, retries are counted twice.
func TestRequestIDThroughBothDoors(t *testing.T) {
	s, up := newServer(t), newRecorder(t, nil)
	site := "limitkeeper_api\n@site not path /functions/*\nroute @site {\n" + keyed + up.proxy() + "\n}"
	s.Start("store memory", site)
	ten := s.Tenant("default", 10)
	through := func(id string) caddytest.Reply {
		return s.Get("/", "X-API-Key: "+ten.Secret, "Idempotency-Key: "+id)
	}
	counted := func(what string, got caddytest.Reply, remaining string, used int64) {
		t.Helper()
		if got.StatusCode != 200 || got.Header.Get("X-RateLimit-Remaining") != remaining || s.used(ten) != used {
			t.Errorf("%s: got %d with remaining %q and %d used, want 200 with %q and %d used", what,
				got.StatusCode, got.Header.Get("X-RateLimit-Remaining"), s.used(ten), remaining, used)
		}
	}
	counted("a, gateway", through("a"), "9", 1)
	counted("b, API", s.validateAs(ten, "b"), "8", 2)
	counted("a again, gateway", through("a"), "9", 2)
	counted("a again, API", s.validateAs(ten, "a"), "9", 2)
	counted("b again, gateway", through("b"), "8", 2)
	counted("a quoted, gateway", through(`"a"`), "9", 2)
	counted("a quoted, API", s.validateAs(ten, `"a"`), "9", 2)
	counted("A", through("A"), "7", 3)
	s.Start("store memory", site+"\nheader X-Reloaded yes")
	counted("a after a reload", through("a"), "9", 3)
	counted("b after a reload", s.validateAs(ten, "b"), "8", 3)
	if got := s.validateAs(ten, "a").Text; !strings.Contains(got, `"current_usage":1,`) {
		t.Errorf("a, API: got %s, want the usage 1", got)
	}
	if n := up.count.Load(); n != 6 {
		t.Errorf("%d requests reached the upstream, want the 6 that were sent through the gateway", n)
	}
	if got := up.last.Load().Header.Get("Idempotency-Key"); got != "a" {
		t.Errorf("the upstream got the id %q, want it as it came", got)
	}
}

// An invalid id is refused like an invalid cost: the request is not counted and not forwarded. A request
// without an id, or with an empty id, is counted.
func TestGatewayRequestID(t *testing.T) {
	s, up := newServer(t), newRecorder(t, nil)
	s.Start("store memory", keyed+up.proxy())
	ten := s.Tenant("default", 10)
	long := strings.Repeat("x", 128)
	for _, tc := range []struct {
		name       string
		ids        []string
		status     int
		used, sent int64
	}{
		{"none", nil, 200, 1, 1},
		{"empty", []string{""}, 200, 2, 2},
		{"blank", []string{"  "}, 200, 3, 3},
		{"one", []string{"a"}, 200, 4, 4},
		{"the same", []string{"a"}, 200, 4, 5},
		{"the same with blanks around it", []string{" a "}, 200, 4, 6},
		{"the same, quoted", []string{`"a"`}, 200, 4, 7},
		{"the same, quoted with a parameter", []string{`"a";v=1`}, 200, 4, 8},
		{"half quoted", []string{`"a`}, 200, 5, 9},
		{"the longest", []string{long}, 200, 6, 10},
		{"the longest again, quoted", []string{`"` + long + `"`}, 200, 6, 11},
		{"one and an empty one", []string{"", "a"}, 200, 6, 12},
		{"two", []string{"a", "b"}, 400, 6, 12},
		{"the same twice", []string{"a", "a"}, 400, 6, 12},
		{"the same twice, once quoted", []string{"a", `"a"`}, 400, 6, 12},
		{"too long", []string{long + "x"}, 400, 6, 12},
		{"too long, quoted", []string{`"` + long + `x"`}, 400, 6, 12},
		{"an empty string", []string{`""`}, 400, 6, 12},
		{"no UTF-8", []string{"\xff"}, 400, 6, 12},
		{"a control character", []string{"a\tb"}, 400, 6, 12},
		{"a key", []string{ten.Secret}, 400, 6, 12},
		{"a key, quoted", []string{`"` + ten.Secret + `"`}, 400, 6, 12},
	} {
		headers := []string{"X-API-Key: " + ten.Secret}
		for _, id := range tc.ids {
			headers = append(headers, "Idempotency-Key: "+id)
		}
		got := s.Get("/", headers...)
		if got.StatusCode != tc.status || s.used(ten) != tc.used || up.count.Load() != tc.sent {
			t.Errorf("%s: got %d, used %d, %d sent; want %d, %d, %d", tc.name,
				got.StatusCode, s.used(ten), up.count.Load(), tc.status, tc.used, tc.sent)
		}
		if tc.status != 400 {
			continue
		}
		body := decoded(t, got.Text)
		details, _ := body["details"].(map[string]any)
		if body["success"] != false || body["code"] != "INVALID_REQUEST" || details["field"] != "request_id" || details["message"] == nil {
			t.Errorf("%s: got %s, want INVALID_REQUEST of request_id", tc.name, got.Text)
		}
	}
	if got := s.Get("/", "X-API-Key: lk_user_unknown", "Idempotency-Key: "+long+"x"); got.StatusCode != 401 {
		t.Errorf("a bad id with an unknown key: got %d, want 401", got.StatusCode)
	}
	if strings.Contains(up.last.Load().Header.Get("X-Api-Key"), "lk_") {
		t.Errorf("the upstream got the key")
	}
}

// Without the option request_id the gateway ignores ids.
func TestGatewayWithoutRequestID(t *testing.T) {
	s := newServer(t)
	s.Start("store memory", "limitkeeper\nrespond ok")
	ten := s.Tenant("default", 10)
	for range 3 {
		s.Get("/", "X-API-Key: "+ten.Secret, "Idempotency-Key: a", "Request-Id: a")
	}
	if n := s.used(ten); n != 3 {
		t.Errorf("counted %d, want 3", n)
	}
}

// The placeholder and the metrics tell repeated requests: the number of decisions with the outcome allowed
// equals the number of counted requests.
func TestRepeatsAreMarked(t *testing.T) {
	s := newServer(t)
	s.Start("store memory", keyed+`respond "{http.limitkeeper.outcome} {http.limitkeeper.repeated} {http.limitkeeper.used} {http.limitkeeper.plan_name}"`)
	ten := s.Tenant("default", 10)
	for i, want := range []string{"allowed false 1 Größe M", "allowed true 1 Größe M", "allowed true 1 Größe M"} {
		if got := s.Get("/", "X-API-Key: "+ten.Secret, "Idempotency-Key: a").Text; got != want {
			t.Errorf("request %d: got %q, want %q", i+1, got, want)
		}
	}
	m := newMetrics()
	names := &accountNames{service: s.Service()}
	names.add(&core.Account{ID: "acct_1", Name: "one"})
	for _, repeated := range []bool{false, true, true} {
		m.decided(names, &service.Decision{Account: "acct_1", Outcome: service.Allowed, Repeated: repeated, Plan: &core.Plan{Name: "p"}})
	}
	got := m.series(t)
	if got["one allowed p"] != 1 || got["one repeated p"] != 2 {
		t.Errorf("got the decisions %v, want 1 allowed and 2 repeated", got)
	}
}

// Concurrent retries through the gateway and /validate are counted once for each id, and never above the
// quota.
func TestRequestIDsAtOnce(t *testing.T) {
	const callers, ids, quota = 16, 20, 12
	s := newServer(t)
	s.Start("store memory", "limitkeeper_api\n@site not path /functions/*\nroute @site {\n"+keyed+"respond ok\n}")
	ten := s.Tenant("default", quota)
	var mu sync.Mutex
	answers := map[string]map[bool]bool{}
	var wg sync.WaitGroup
	for caller := range callers {
		wg.Go(func() {
			for i := range ids {
				id, allowed := fmt.Sprint("id ", i), false
				if caller%2 == 0 {
					allowed = s.Get("/", "X-API-Key: "+ten.Secret, "Idempotency-Key: "+id).StatusCode == 200
				} else {
					allowed = strings.Contains(s.validateAs(ten, id).Text, `"success":true`)
				}
				mu.Lock()
				if answers[id] == nil {
					answers[id] = map[bool]bool{}
				}
				answers[id][allowed] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	allowed := 0
	for id, heard := range answers {
		if len(heard) != 1 {
			t.Errorf("%q was allowed and denied, want one of them", id)
		}
		if heard[true] {
			allowed++
		}
	}
	if n := s.used(ten); allowed != quota || n != quota {
		t.Errorf("got %d ids allowed and %d used, want %d", allowed, n, quota)
	}
}

// A config with an invalid request_id header, or with the header of the key, is refused.
func TestRequestIDSource(t *testing.T) {
	header := func(name string) *RequestIDSource { return &RequestIDSource{In: inHeader, Name: name} }
	for _, tc := range []struct {
		name string
		from *RequestIDSource
		keys []KeySource
		want string // "" for none
	}{
		{"a header", header("idempotency-key"), defaultKeySources(), ""},
		{"beside a query", header("X-Api-Key"), []KeySource{{In: inQuery, Name: "X-Api-Key"}}, ""},
		{"no place", &RequestIDSource{Name: "X"}, nil, `request_id "": want header`},
		{"a query", &RequestIDSource{In: inQuery, Name: "id"}, nil, `request_id "query": want header`},
		{"no name", header(""), nil, "the name is missing"},
		{"a bad name", header("a b"), nil, `"a b" is not a valid name`},
		{"the host", header("host"), nil, "Host cannot carry an id"},
		{"the key's header", header("x-api-key"), defaultKeySources(), "x-api-key carries the key"},
		{"the bearer", header("authorization"), defaultKeySources(), "authorization carries the key"},
		{"the cookies", header("Cookie"), []KeySource{{In: inCookie, Name: "c"}}, "Cookie carries the key"},
	} {
		g := &Gateway{RequestID: tc.from, Keys: tc.keys, OnStoreError: onStoreErrorDeny}
		err := g.check()
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", tc.name, err, tc.want)
		}
	}
	s := newServer(t)
	err := s.Load(s.Config("store memory", "limitkeeper {\nkey header Idempotency-Key\nrequest_id header Idempotency-Key\n}\nrespond ok"))
	if err == nil || !strings.Contains(err.Error(), "carries the key") {
		t.Errorf("loading a gateway whose ids are its keys: got %v, want an error", err)
	}
}

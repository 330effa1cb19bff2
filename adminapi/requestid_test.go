package adminapi_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// validation is a validation with an id. Other members are given by name and value.
func validation(secret, id string, others ...any) object {
	o := object{"api_key": secret, "endpoint": "/v1/reports", "method": "POST", "request_id": id}
	for i := 0; i+1 < len(others); i += 2 {
		o[others[i].(string)] = others[i+1]
	}
	return o
}

// A repeated request id gets the first answer again, byte for byte and with its headers, whatever the quota is
// meanwhile. A client that lost the first answer gets the same one.
func TestFirstAnswerAgain(t *testing.T) {
	a := newAPI(t)
	plan := a.plan(3)
	id, secret := a.key(a.user("Example Customer"), plan)
	send := func(body object) *result { return a.do("POST", prefix+"/validate", body).want(http.StatusOK) }
	was := send(validation(secret, "id"))
	for range 2 {
		a.validate(secret)
	}
	a.validate(secret) // denied
	a.do("PUT", prefix+"/plans/"+plan, object{"name": "Other", "max_requests": 1, "request_period": "day"}).want(http.StatusOK)
	for name, body := range map[string]object{
		"the same":         validation(secret, "id"),
		"another endpoint": validation(secret, "id", "endpoint", "/other", "method", "GET", "ip_address", "192.0.2.1"),
		"another cost":     validation(secret, "id", "cost", 1000000),
		"a look":           validation(secret, "id", "cost", 0),
	} {
		again := send(body)
		if d := cmp.Diff(was.at(), again.at()); d != "" {
			t.Errorf("%s (-first +again):\n%s", name, d)
		}
		for h, want := range was.header {
			if h == "X-Request-Id" || h == "Date" {
				continue
			}
			if got := again.header[h]; !cmp.Equal(want, got) {
				t.Errorf("%s: %s: got %q, want %q", name, h, got, want)
			}
		}
	}
	usage := a.do("GET", prefix+"/keys/"+id+"/usage", nil).want(http.StatusOK).data()
	if got := intOf(usage["current_usage"]); got != 3 {
		t.Errorf("usage: got %d, want 3", got)
	}
	r := a.do("GET", prefix+"/keys/"+id+"/requests", nil).want(http.StatusOK).data()
	if got := intOf(r["count"]); got != 4 {
		t.Errorf("history: got %d entries, want the 3 that were counted and the one that was denied", got)
	}
}

// Request ids are compared byte for byte. Confusing two ids would lose a count, and splitting one id would
// count twice.
func TestRequestIDsAreExact(t *testing.T) {
	a := newAPI(t)
	user, plan := a.user("Example Customer"), a.plan(1000)
	_, secret := a.key(user, plan)
	_, other := a.key(user, plan)
	ids := []string{"a", "A", "a ", " a", "é", "e\u0301", "0", strings.Repeat("x", 128), strings.Repeat("é", 64), `"a`, "{request_id}", "lk_user_"}
	again := map[string]int{`"a"`: 1, `"A"`: 2, `"a "`: 3, `"` + strings.Repeat("x", 128) + `"`: 8, `"\"a"`: 10} // quoted strings
	send := func(id string, want int) {
		t.Helper()
		for _, s := range []string{secret, other} {
			r := a.do("POST", prefix+"/validate", validation(s, id)).want(http.StatusOK)
			if got := intOf(r.at("details")["current_usage"]); got != want {
				t.Errorf("%q: got the usage %d, want %d", id, got, want)
			}
		}
	}
	for range 2 {
		for i, id := range ids {
			send(id, i+1)
		}
		for id, want := range again {
			send(id, want)
		}
	}
}

// null and a missing member are no id: each such request counts.
func TestNoRequestID(t *testing.T) {
	a := newAPI(t)
	_, secret := a.key(a.user("Example Customer"), a.plan(10))
	for want := 1; want <= 4; want++ {
		body := validation(secret, "")
		if delete(body, "request_id"); want%2 == 0 {
			body["request_id"] = nil
		}
		r := a.do("POST", prefix+"/validate", body).want(http.StatusOK)
		if got := intOf(r.at("details")["current_usage"]); got != want {
			t.Errorf("got the usage %d, want %d", got, want)
		}
	}
}

// A repeated request id is refused if its key is disabled or expired meanwhile.
func TestRepeatIsCheckedFirst(t *testing.T) {
	a := newAPI(t)
	user := a.user("Example Customer")
	id, secret := a.key(user, a.plan(10))
	send := func(api *api) *result {
		return api.do("POST", prefix+"/validate", validation(secret, "id")).want(http.StatusOK)
	}
	send(a)
	code := func(when string, api *api, want any) {
		t.Helper()
		if got := send(api).at()["code"]; got != want {
			t.Errorf("%s: got the code %v, want %v", when, got, want)
		}
	}
	code("enabled", a, nil)
	a.do("PUT", prefix+"/keys/"+id, object{"status": "inactive"}).want(http.StatusOK)
	code("inactive", a, "API_KEY_DISABLED")
	a.do("PUT", prefix+"/keys/"+id, object{"status": "active", "expires_at": began.Add(time.Hour)}).want(http.StatusOK)
	code("active again", a, nil)
	code("in another account", a.as(a.account("other")), "API_KEY_NOT_FOUND")
	a.clock.Pass(time.Hour)
	code("expired", a, "INVALID_API_KEY")
	a.do("DELETE", prefix+"/keys/"+id, nil).want(http.StatusOK)
	code("deleted", a, "API_KEY_NOT_FOUND")
}

// Concurrent retries count once and get the same answer.
func TestRetriesAtOnce(t *testing.T) {
	const callers, ids, limit = 16, 20, 12
	a := newAPI(t)
	key, secret := a.key(a.user("Example Customer"), a.plan(limit))
	answers := make([]sync.Map, ids)
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for i := range ids {
				r := a.do("POST", prefix+"/validate", validation(secret, fmt.Sprint(i))).want(http.StatusOK)
				answers[i].Store(fmt.Sprint(r.at()["success"], r.at("details")["current_usage"]), true)
			}
		})
	}
	wg.Wait()
	allowed := 0
	for i := range answers {
		n := 0
		answers[i].Range(func(answer, _ any) bool {
			n++
			if strings.HasPrefix(answer.(string), "true") {
				allowed++
			}
			return true
		})
		if n != 1 {
			t.Errorf("request %d: got %d different answers, want one", i, n)
		}
	}
	usage := a.do("GET", prefix+"/keys/"+key+"/usage", nil).want(http.StatusOK).data()
	if got := intOf(usage["current_usage"]); allowed != limit || got != limit {
		t.Errorf("got %d requests allowed and the usage %d, want %d", allowed, got, limit)
	}
}

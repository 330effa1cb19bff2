package service_test

import (
	"context"
	"errors"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// A request id is UTF-8 of 1 to 128 bytes, without control characters, and not a secret (promise
// 4). A quoted string and its value are the same id.
func TestParseRequestID(t *testing.T) {
	longest := strings.Repeat("é", core.MaxRequestIDLength/2)
	tests := []struct {
		name, text string
		want       string // "" for an error
	}{
		{"short", "a", "a"},
		{"a UUID", "018f3a7e-0b5c-7c1e-9d4f-2f6f0a1b2c3d", "018f3a7e-0b5c-7c1e-9d4f-2f6f0a1b2c3d"},
		{"a space", " ", " "},
		{"the longest", longest, longest},
		{"beginning like a key", "lk_user_", "lk_user_"},
		{"quoted", `"8e03978e-40d5"`, "8e03978e-40d5"},
		{"quoted, with escapes", `"a\"b\\"`, `a"b\`},
		{"quoted, with a parameter", `"a";v=1`, "a"},
		{"the longest, quoted and escaped", `"` + strings.Repeat(`\"`, core.MaxRequestIDLength) + `"`, strings.Repeat(`"`, core.MaxRequestIDLength)},
		{"a quote in front", `"a`, `"a`},
		{"a quote in the end", `a"`, `a"`},
		{"an escape that there is not", `"\a"`, `"\a"`},
		{"quoted beyond ASCII", `"é"`, `"é"`},
		{"a list", `"a", "b"`, `"a", "b"`},
		{"empty", "", ""},
		{"empty, quoted", `""`, ""},
		{"too long", longest + "a", ""},
		{"too long, quoted", `"` + strings.Repeat("a", core.MaxRequestIDLength+1) + `"`, ""},
		{"a line feed", "a\nb", ""},
		{"a zero", "\x00", ""},
		{"a delete", "a\x7f", ""},
		{"a control character beyond ASCII", "a\u0085", ""},
		{"no UTF-8", "a\xff", ""},
		{"half a character", longest[:1], ""},
		{"an end user's key", "lk_user_" + strings.Repeat("a", 32), ""},
		{"an end user's key, quoted and escaped", `"lk_user_\"` + strings.Repeat("a", 32) + `"`, `lk_user_"` + strings.Repeat("a", 32)},
		{"an end user's key, quoted", `"lk_user_` + strings.Repeat("a", 32) + `"`, ""},
		{"an owner's key within", "id-lk_" + strings.Repeat("a", 29), ""},
		{"a key percent-encoded", "lk%5Fuser%5F" + strings.Repeat("a", 32), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := service.ParseRequestID(tt.text)
			if got != tt.want || (err == nil) != (tt.want != "") {
				t.Fatalf("ParseRequestID(%q) = %q, %v, want %q", tt.text, got, err, tt.want)
			}
			if err != nil && (fieldOf(err) != "request_id" || core.ErrorCode(err) != core.CodeInvalidRequest) {
				t.Errorf("ParseRequestID(%q) = %v, want an INVALID_REQUEST of request_id", tt.text, err)
			}
			r := service.Request{Secret: "lk_user_a", Endpoint: "/", Method: "GET", Cost: 1, RequestID: got}
			if err := r.Check(); err != nil {
				t.Errorf("Check() of a request with the id %q = %v, want no error", got, err)
			}
		})
	}
	r := service.Request{Secret: "lk_user_a", Endpoint: "/", Method: "GET", Cost: 1, RequestID: longest + "a"}
	if fieldOf(r.Check()) != "request_id" {
		t.Errorf("Check() of a request with a long id = %v, want an error of request_id", r.Check())
	}
}

// A repeat returns the plan of the first decision, and is marked as a repeat.
func TestRepeatedDecision(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	s := newService(&now)
	acct, secret, _ := oneKey(t, s, 10)
	r := service.Request{Secret: secret, Endpoint: "/", Method: "GET", Cost: 2, RequestID: "id"}
	validate := func() service.Decision {
		t.Helper()
		d, err := s.Validate(t.Context(), acct, r)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	was := validate()
	if was.Repeated || was.Plan.Name != "basic" {
		t.Fatalf("the first decision: got repeated %t on %q, want a new one on %q", was.Repeated, was.Plan.Name, "basic")
	}
	plan := was.Plan.ID
	if _, err := s.UpdatePlan(t.Context(), acct, plan, core.PlanPatch{Name: new("renamed"), Limit: core.Some(int64(1)), Period: new("year")}); err != nil {
		t.Fatal(err)
	}
	now = now.Add(20 * time.Hour)
	again := validate()
	if !again.Repeated || !again.Allowed() || again.Usage != was.Usage || again.Remaining() != 8 {
		t.Errorf("the second decision: got %+v, want the usage %+v again", again, was.Usage)
	}
	if p := again.Plan; p.AccountID != acct || p.ID != plan || p.Name != "basic" || p.Limit != 10 || p.Period != core.Day {
		t.Errorf("its plan: got %+v, want that of the first decision", p)
	}
	if again.Key == nil || again.User == nil || again.Account != acct {
		t.Errorf("the second decision: got %+v, want its key and user", again)
	}
	r.RequestID = ""
	if d := validate(); d.Repeated || d.Allowed() || d.Plan.Name != "renamed" {
		t.Errorf("a request without an id: got %+v on %q, want denied on %q", d, d.Plan.Name, "renamed")
	}
}

// Promise 1, with request ids: if many clients send the same requests again and again, each request
// is counted once, up to the quota.
func TestRepeatsAreExact(t *testing.T) {
	const callers, ids, quota = 32, 50, 40
	now := at("2026-03-05T10:00:00Z")
	var mu sync.Mutex
	counted, repeated := 0, 0
	s := service.New(memstore.New(), service.Config{Clock: func() time.Time { return now }, OnDecision: func(d *service.Decision) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case d.Repeated:
			repeated++
		case d.Allowed():
			counted++
		}
	}})
	acct, secret, key := oneKey(t, s, quota)
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for i := range ids {
				id := strconv.Itoa(i)
				d, err := s.Validate(context.Background(), acct, service.Request{Secret: secret, Endpoint: "/", Method: "GET", Cost: 1, RequestID: id})
				if err != nil || d.Usage.Used > quota {
					t.Errorf("request %q: got the usage %d, %v", id, d.Usage.Used, err)
				}
			}
		})
	}
	wg.Wait()
	if counted != quota || repeated != quota*(callers-1) {
		t.Errorf("got %d counted and %d repeated, want %d and %d", counted, repeated, quota, quota*(callers-1))
	}
	u, err := s.KeyUsage(t.Context(), acct, key)
	if err != nil || u.Used != quota {
		t.Errorf("usage: got %d, %v, want %d", u.Used, err, quota)
	}
}

// seesConsumption records the last request to the store.
type seesConsumption struct {
	core.Store
	last core.Consumption
}

func (s *seesConsumption) Consume(ctx context.Context, c *core.Consumption) (core.ConsumeResult, error) {
	s.last = *c
	return s.Store.Consume(ctx, c)
}

// Service passes a store all that it decides by: the id and the Seq of the key, the terms of the
// plan in force and the request id. If one is missing, the store counts on another counter or
// remembers nothing.
func TestConsumptionIsWhole(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	store := &seesConsumption{Store: memstore.New()}
	s := service.New(store, service.Config{Clock: func() time.Time { return now }})
	acct, _, _ := oneKey(t, s, 10) // so that the Seq of the next key is not 1
	u, err := s.CreateUser(t.Context(), acct, core.UserPatch{Name: new("bob")})
	if err != nil {
		t.Fatal(err)
	}
	plans, _, err := s.Plans(t.Context(), acct, first)
	if err != nil {
		t.Fatal(err)
	}
	k, secret, err := s.CreateKey(t.Context(), acct, core.KeyPatch{Name: new("k"), UserID: &u.ID, PlanID: core.Some(plans[0].ID)})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Validate(t.Context(), acct, service.Request{Secret: secret, Endpoint: "/", Method: "GET", Cost: 3, RequestID: "id"})
	if err != nil {
		t.Fatal(err)
	}
	c := store.last
	if k.Seq != 2 || c.KeyID != k.ID || c.KeySeq != k.Seq || c.UserID != u.ID || c.Account != acct || c.Shared {
		t.Errorf("got the key %s (%d) of user %d in %s, shared %t; want %s (%d) of %d in %s",
			c.KeyID, c.KeySeq, c.UserID, c.Account, c.Shared, k.ID, k.Seq, u.ID, acct)
	}
	if want := (core.Terms{PlanID: plans[0].ID, PlanName: "basic", Period: core.Day, Limit: 10}); !reflect.DeepEqual(c.Terms, want) {
		t.Errorf("terms: got %+v, want %+v", c.Terms, want)
	}
	if c.RequestID != "id" || c.Cost != 3 || c.Entry.Cost != 3 || !c.Entry.At.Equal(now) || c.Retention != core.DefaultRetention {
		t.Errorf("got %+v, want the id, the cost 3 and the time %v", c, now)
	}
}

// After an error of the store, a retry with the same id is counted.
func TestRequestIDAfterFault(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	good := memstore.New()
	s := service.New(good, service.Config{Clock: func() time.Time { return now }})
	acct, secret, _ := oneKey(t, s, 10)
	r := service.Request{Secret: secret, Endpoint: "/", Method: "GET", Cost: 1, RequestID: "id"}
	failing := service.New(brokenStore{good}, service.Config{Clock: func() time.Time { return now }})
	if _, err := failing.Validate(t.Context(), acct, r); !errors.Is(err, core.ErrUnavailable) {
		t.Fatalf("Validate without a store: got %v, want %v", err, core.ErrUnavailable)
	}
	for _, repeated := range []bool{false, true} {
		d, err := s.Validate(t.Context(), acct, r)
		if err != nil || !d.Allowed() || d.Repeated != repeated || d.Usage.Used != 1 {
			t.Errorf("got %+v, %v, want allowed with the usage 1, repeated %t", d, err, repeated)
		}
	}
}

// spyStore keeps the request id of the last consumption.
type spyStore struct {
	*memstore.Store
	id string
}

func (s *spyStore) Consume(ctx context.Context, c *core.Consumption) (core.ConsumeResult, error) {
	s.id = c.RequestID
	return s.Store.Consume(ctx, c)
}

// A store keeps a request id for a day. It must not keep the long body that has the id.
func TestRequestIDIsNoPartOfTheBody(t *testing.T) {
	store := &spyStore{Store: memstore.New()}
	svc := service.New(store, service.Config{})
	c := newTenant(t, svc, "acme")
	_, secret := c.newKey("k")
	body := strings.Repeat("b", 60_000) + "id"
	id := body[60_000:]
	_, err := svc.Validate(t.Context(), c.id, service.Request{Secret: secret, Endpoint: "/x", Method: "GET", Cost: 1, RequestID: id})
	c.ok(err)
	if store.id != "id" || unsafe.StringData(store.id) == unsafe.StringData(id) {
		t.Errorf("the store got %q, in the memory of the body: %t", store.id, unsafe.StringData(store.id) == unsafe.StringData(id))
	}
}

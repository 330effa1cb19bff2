package adminapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// counters returns the counters of a user's usage in short: key, plan and usage of each.
func counters(r *result) (list []string) {
	r.t.Helper()
	var v struct {
		Data struct {
			Counters []struct {
				KeyID    *string `json:"key_id"`
				PlanName string  `json:"plan_name"`
				Limits   []struct {
					Meter, Period        string
					Max, Used, Remaining int64
					ResetTime            string `json:"reset_time"`
				}
			}
		}
	}
	if err := json.Unmarshal(r.body, &v); err != nil {
		r.t.Fatal(err)
	}
	for _, c := range v.Data.Counters {
		key := "shared"
		if c.KeyID != nil {
			key = *c.KeyID
		}
		list = append(list, fmt.Sprint(key, " ", c.PlanName, " ", c.Limits))
	}
	return list
}

// manyKeys makes n keys of a user, without asking the API.
func (a *api) manyKeys(user, plan string, n int) {
	a.t.Helper()
	acct, err := a.svc.AccountByName(context.Background(), "acme")
	if err != nil {
		a.t.Fatal(err)
	}
	id, _ := strconv.ParseInt(user, 10, 64)
	for range n {
		if _, _, err := a.svc.CreateKey(context.Background(), acct.ID, core.KeyPatch{Name: new("k"), UserID: &id, PlanID: core.Some(plan)}); err != nil {
			a.t.Fatal(err)
		}
	}
}

// A counter that is used up leads the counters of its user, whatever else the user has: the sums
// alone would say that nearly everything is left. Equal shares are in the order of creation, the
// shared counter first, also if no key uses it.
func TestUserCounters(t *testing.T) {
	a := newAPI(t)
	newPlan := func(name string, limit int) string {
		return a.do("POST", prefix+"/plans", object{"name": name, "max_requests": limit, "request_period": "month"}).want(201).str("id")
	}
	large, small := newPlan("Large", 275_000), newPlan("Small", 4)
	user := a.do("POST", prefix+"/users", object{"name": "Example Customer", "plan_id": large}).want(201).data()["user_id"].(json.Number).String()
	usage := func() *result { return a.do("GET", prefix+"/users/"+user+"/usage", nil).want(200) }
	want := []string{"shared Large [{requests month 275000 0 275000 2026-04-01T00:00:00Z}]"}
	if diff := cmp.Diff(want, counters(usage())); diff != "" {
		t.Errorf("without keys (-want +got):\n%s", diff)
	}
	if d := usage().data(); fmt.Sprint(d["limit"], d["plan_name"]) != "0<nil>" {
		t.Errorf("the sums are over the counters that keys draw on: got %v", d)
	}
	first, _ := a.key(user, small)
	_, shared := a.key(user, "")
	half, halfSecret := a.key(user, small)
	full, fullSecret := a.key(user, small)
	also, alsoSecret := a.key(user, small)
	for range 14 {
		a.validate(shared)
	}
	for range 5 {
		a.validate(alsoSecret)
		a.validate(fullSecret)
	}
	a.validate(halfSecret)
	a.validate(halfSecret)
	want = []string{
		full + " Small [{requests month 4 4 0 2026-04-01T00:00:00Z}]",
		also + " Small [{requests month 4 4 0 2026-04-01T00:00:00Z}]",
		half + " Small [{requests month 4 2 2 2026-04-01T00:00:00Z}]",
		"shared Large [{requests month 275000 14 274986 2026-04-01T00:00:00Z}]",
		first + " Small [{requests month 4 0 4 2026-04-01T00:00:00Z}]",
	}
	if diff := cmp.Diff(want, counters(usage())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if d := usage().data(); fmt.Sprint(d["current_usage"], " ", d["limit"], " ", d["plan_name"], " ", d["counter_count"]) != "24 275016 Small, Large 5" {
		t.Errorf("the sums: got %v", d)
	}
	if got := a.do("GET", prefix+"/keys/"+full+"/usage", nil).want(200).data()["limits"]; fmt.Sprint(got) != "[map[exhausts_at:2026-03-14T09:26:53Z max:4 meter:requests of:plan period:month remaining:0 reset_time:2026-04-01T00:00:00Z used:4]]" {
		t.Errorf("limits of a key: got %v", got)
	}
	a.do("PUT", prefix+"/plans/"+small, object{"max_requests": 1}).want(200)
	if got := counters(usage()); got[0] != full+" Small [{requests month 1 4 0 2026-04-01T00:00:00Z}]" {
		t.Errorf("with a limit below the usage: got %v", got)
	}
}

// The answer lists the hundred fullest counters of a user and the number of all counters, for any number of
// keys.
func TestUserCountersAreBounded(t *testing.T) {
	a := newAPI(t)
	plan, user := a.plan(5), a.user("Example Customer")
	a.manyKeys(user, plan, 149)
	last, secret := a.key(user, plan)
	a.validate(secret)
	r := a.do("GET", prefix+"/users/"+user+"/usage", nil).want(200)
	if got := counters(r); len(got) != service.MaxUserCounters || intOf(r.data()["counter_count"]) != 150 ||
		got[0] != last+" Basic [{requests month 5 1 4 2026-04-01T00:00:00Z}]" {
		t.Errorf("got %d of %v, first %s", len(got), r.data()["counter_count"], got[0])
	}
}

// gated is a store of which the counters of many keys can be read when the gate is open.
type gated struct {
	core.Store
	gate    chan struct{}
	entered chan struct{}
	reading atomic.Int32
	most    atomic.Int32
}

func (g *gated) View(ctx context.Context, account string, fn func(core.View) error) error {
	return g.Store.View(ctx, account, func(v core.View) error { return fn(gatedView{v, g}) })
}

type gatedView struct {
	core.View
	g *gated
}

func (v gatedView) Counters(ids []core.CounterID) ([]core.Counter, error) {
	g := v.g
	if len(ids) > 500 {
		if n := g.reading.Add(1); n > g.most.Load() {
			g.most.Store(n)
		}
		defer g.reading.Add(-1)
		g.entered <- struct{}{}
		<-g.gate
	}
	return v.View.Counters(ids)
}

// An account runs one large usage query at a time: 16 more wait, and the next gets 429. Small
// queries, and other accounts, do not wait.
func TestLargeQueriesTakeTurns(t *testing.T) {
	store := &gated{Store: memstore.New(), gate: make(chan struct{}), entered: make(chan struct{}, 100)}
	a := newAPIOver(t, store)
	plan, user, small := a.plan(5), a.user("Large"), a.user("Small")
	a.key(small, plan)
	a.manyKeys(user, plan, 1001)
	other := a.as(a.account("other"))
	otherUser := other.user("Other")
	other.key(otherUser, other.plan(5))

	answers := make(chan int, 18)
	var all sync.WaitGroup
	read := func() {
		all.Go(func() {
			e := a.exchange("GET", prefix+"/users/"+user+"/usage", nil)
			if err := a.contract.checkAnswer(e); err != nil {
				t.Error(err)
			}
			answers <- e.status
		})
	}
	read()
	<-store.entered
	for range 17 {
		read()
	}
	open := sync.OnceFunc(func() { close(store.gate) })
	defer open()
	select {
	case got := <-answers:
		if got != http.StatusTooManyRequests {
			t.Errorf("the first that is answered: got %d, want 429", got)
		}
	case <-store.entered:
		t.Fatal("two large queries of an account run at the same time")
	}
	a.do("GET", prefix+"/users/"+small+"/usage", nil).want(200)
	other.do("GET", prefix+"/users/"+otherUser+"/usage", nil).want(200)
	open()
	for range 17 {
		if got := <-answers; got != http.StatusOK {
			t.Errorf("got %d, want 200", got)
		}
	}
	all.Wait()
	if got := store.most.Load(); got != 1 {
		t.Errorf("queries at the same time: got %d, want 1", got)
	}
}

package redisstore_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// 64 callers on two nodes go through 80 and 100 per cent of a limit while both nodes write events: Redis has each event once, and one node reports it. A
// node that crashes before it has written an event leaves it to the next one that starts.
func TestEventsOfTwoNodes(t *testing.T) {
	server := redistest.Start(t)
	var mu sync.Mutex
	var reported []string
	node := func() *service.Service {
		return service.New(openFaulty(t, faulty(server.Addr())), service.Config{OnEvent: func(_ string, e *core.Event) {
			if e.Type == core.EventThreshold || e.Type == core.EventExhausted {
				mu.Lock()
				defer mu.Unlock()
				reported = append(reported, e.ID)
			}
		}})
	}
	nodes, ctx := []*service.Service{node(), node()}, t.Context()
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	a, _, _, err := nodes[0].CreateAccount(ctx, "account")
	ok(err)
	plan, err := nodes[0].CreatePlan(ctx, a.ID, core.PlanPatch{Name: ref("plan"), Limit: core.Some(int64(1000)), Period: ref("year")})
	ok(err)
	u, err := nodes[0].CreateUser(ctx, a.ID, core.UserPatch{Name: ref("user"), PlanID: core.Some(plan.ID)})
	ok(err)
	key := func() string {
		_, secret, err := nodes[0].CreateKey(ctx, a.ID, core.KeyPatch{Name: ref("key"), UserID: &u.ID, PlanID: core.Some(plan.ID)})
		ok(err)
		return secret
	}
	use := func(n int, secret string, cost int64) {
		if _, err := nodes[n].Validate(context.Background(), a.ID, service.Request{Secret: secret, Endpoint: "/", Method: "GET", Cost: cost}); err != nil {
			t.Error(err)
		}
	}
	stored := func() (types string) {
		t.Helper()
		list, _, err := openFaulty(t, faulty(server.Addr())).Events(ctx, a.ID, core.EventFilter{}, 0, 1000)
		ok(err)
		var all []string
		for _, e := range list {
			if e.Type != core.EventForecast {
				all = append(all, strings.TrimPrefix(e.Type, "limitkeeper."))
			}
		}
		return strings.Join(all, " ")
	}
	secret := key()
	var callers, writers sync.WaitGroup
	var done atomic.Bool
	for i := range 64 {
		callers.Go(func() {
			for range 20 {
				use(i%2, secret, 1)
			}
		})
	}
	for _, n := range nodes {
		writers.Go(func() {
			for !done.Load() {
				if err := n.WriteEvents(context.Background()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	callers.Wait()
	done.Store(true)
	writers.Wait()
	for _, n := range nodes {
		ok(n.FlushEvents(ctx))
	}
	want := "threshold threshold exhausted"
	if got := stored(); got != want {
		t.Errorf("the store has %s, want %s", got, want)
	}
	if slices.Sort(reported); len(reported) != 3 || len(slices.Compact(slices.Clone(reported))) != 3 {
		t.Errorf("%d events were reported, want 3 different ones", len(reported))
	}

	for _, n := range nodes {
		ok(n.RankAccounts(ctx))
	}
	use(1, key(), 850) // and the node crashes
	restarted := node()
	ok(restarted.RankAccounts(ctx))
	ok(restarted.FlushEvents(ctx))
	if got := stored(); got != want+" threshold" {
		t.Errorf("after a crash the store has %s, want %s threshold", got, want)
	}
}

package redisstore_test

import (
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/clocktest"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// A node whose wall clock is a year ahead moves the windows of no other node, neither after a start nor
// after a jump. A failure means that one wrong clock ends the quotas of every customer.
func TestNodeWithWrongClock(t *testing.T) {
	const year = 365 * 24 * time.Hour
	server, ctx := redistest.Start(t), t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	type node struct {
		*service.Service
		clock   *core.Clock
		machine *clocktest.Clock
	}
	start := func(ahead time.Duration) node {
		machine := clocktest.New(time.Now().Add(ahead))
		clock := core.NewClock(machine.Read, nil)
		store := openFaulty(t, redisstore.Options{Addresses: []string{server.Addr()}, Clock: clock})
		return node{service.New(store, service.Config{Clock: clock.Now}), clock, machine}
	}
	right := start(0)
	a, _, _, err := right.CreateAccount(ctx, "account")
	must(err)
	account := a.ID
	plan, err := right.CreatePlan(ctx, account, core.PlanPatch{Name: ref("plan"), Limit: core.Some(int64(1000)), Period: ref("year")})
	must(err)
	u, err := right.CreateUser(ctx, account, core.UserPatch{Name: ref("user"), PlanID: core.Some(plan.ID)})
	must(err)
	_, secret, err := right.CreateKey(ctx, account, core.KeyPatch{Name: ref("key"), UserID: &u.ID})
	must(err)
	count := func(what string, n node, cost, used int64, end int) {
		t.Helper()
		d, err := n.Validate(ctx, account, service.Request{Secret: secret, Endpoint: "/", Method: "GET", Cost: cost})
		if err != nil || d.Usage.Used != used || d.Usage.Window.End.Year() != end {
			t.Errorf("%s: got %d used until %s (%v), want %d until %d", what, d.Usage.Used, d.Usage.Window.End, err, used, end)
		}
	}
	next := right.machine.Wall().Year() + 1
	count("the right node", right, 601, 601, next)

	wrong := start(year)
	count("a node that starts a year ahead", wrong, 1, 602, next)
	wrong.machine.Pass(time.Hour)
	count("the same node an hour later", wrong, 1, 603, next)
	jumps := start(0)
	count("another node", jumps, 1, 604, next)
	jumps.machine.Step(year)
	count("after its clock has jumped", jumps, 1, 605, next)
	jumps.machine.Pass(time.Hour)
	count("an hour later", jumps, 1, 606, next)
	count("the right node", right, 1, 607, next)
	for _, n := range []node{wrong, jumps} {
		if s := n.clock.State(); !s.Held || time.Since(s.Server).Abs() > 2*time.Hour {
			t.Errorf("got the state %+v, want held, with the time of the server", s)
		}
	}

	behind := start(-year)
	count("a node that starts a year behind", behind, 1, 608, next)
	_, err = jumps.clock.Accept()
	must(err)
	count("the node that jumped, accepted by its operator", jumps, 1, 1, next+1)
}

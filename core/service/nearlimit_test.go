package service_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// NearLimits sorts the counters of users, and of keys with a plan of their own, by their share of
// the limit. It leaves out unused counters.
func TestNearLimits(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	s := newService(&now)
	a, _, _, _ := s.CreateAccount(t.Context(), "acme")
	plan := func(limit int64, period string) string {
		pl, err := s.CreatePlan(t.Context(), a.ID, core.PlanPatch{Name: new(fmt.Sprint(limit)), Limit: core.Some(limit), Period: &period})
		if err != nil {
			t.Fatal(err)
		}
		return pl.ID
	}
	small, large := plan(10, "day"), plan(1000, "month")
	spend := func(name string, ofUser, ofKey string, cost int64) {
		p := core.UserPatch{Name: &name}
		if ofUser != "" {
			p.PlanID = core.Some(ofUser)
		}
		u, err := s.CreateUser(t.Context(), a.ID, p)
		if err != nil {
			t.Fatal(err)
		}
		kp := core.KeyPatch{Name: new("key of " + name), UserID: &u.ID}
		if ofKey != "" {
			kp.PlanID = core.Some(ofKey)
		}
		_, secret, err := s.CreateKey(t.Context(), a.ID, kp)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Validate(t.Context(), a.ID, service.Request{Secret: secret, Endpoint: "/", Method: "GET", Cost: cost}); err != nil {
			t.Fatal(err)
		}
	}
	spend("half", small, "", 5)
	spend("idle", small, "", 0)
	spend("full", "", small, 10)
	spend("little", small, large, 30)
	near, err := s.NearLimits(t.Context(), a.ID, 10)
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, n := range near {
		key := ""
		if n.Key != nil {
			key = n.Key.Name
		}
		got += fmt.Sprintf("%s %q %g%%; ", n.User.Name, key, n.Limits[0].Percentage())
	}
	if want := `full "key of full" 100%; half "" 50%; little "key of little" 3%; `; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	if near, _ = s.NearLimits(t.Context(), a.ID, 1); len(near) != 1 || near[0].User.Name != "full" {
		t.Errorf("the first one: got %+v", near)
	}
}

// everywhere is a store that returns the totals of one plan for every plan.
type everywhere struct{ core.Store }

func (s everywhere) PlanTotals(ctx context.Context, account, _ string, p core.Period, at time.Time, n int) (all core.PlanTotals, err error) {
	plans, _, err := s.Plans(ctx, account, core.Page{Number: 1, Size: 10})
	for _, pl := range plans {
		d, err := s.Store.PlanTotals(ctx, account, pl.ID, p, at, n)
		if err != nil {
			return all, err
		}
		for _, u := range d.Top {
			all.Add(n, u.CounterID, u.Seq, u.Usage)
		}
	}
	return all, err
}

// A key or user that changes its plan while NearLimits reads is listed once, under its new plan.
func TestNearLimitsOfChangedPlan(t *testing.T) {
	s := service.New(everywhere{memstore.New()}, service.Config{})
	a, _, _, _ := s.CreateAccount(t.Context(), "acme")
	var plans []string
	for range 3 {
		pl, err := s.CreatePlan(t.Context(), a.ID, core.PlanPatch{Name: new("plan"), Limit: core.Some(int64(10)), Period: new("day")})
		if err != nil {
			t.Fatal(err)
		}
		plans = append(plans, pl.ID)
	}
	u, err := s.CreateUser(t.Context(), a.ID, core.UserPatch{Name: new("user"), PlanID: core.Some(plans[1])})
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range []core.KeyPatch{{Name: new("shared"), UserID: &u.ID}, {Name: new("own"), UserID: &u.ID, PlanID: core.Some(plans[2])}} {
		_, secret, err := s.CreateKey(t.Context(), a.ID, p)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Validate(t.Context(), a.ID, service.Request{Secret: secret, Endpoint: "/", Method: "GET", Cost: int64(i + 1)}); err != nil {
			t.Fatal(err)
		}
	}
	near, err := s.NearLimits(t.Context(), a.ID, 100)
	if err != nil {
		t.Fatal(err)
	}
	if len(near) != 2 || near[0].Key == nil || near[0].Plan.ID != plans[2] || near[1].Key != nil || near[1].Plan.ID != plans[1] {
		t.Errorf("got %+v, want the key on its plan and then the user on its own", near)
	}
}

// A customer whose windows begin on the 15th stays in the list of those near their limit, and in the totals of its plan, when the month of the
// calendar ends; and its key with a plan of its own, too.
func TestNearLimitsOfAnchoredUser(t *testing.T) {
	now := at("2026-03-31T23:00:00Z")
	svc := service.New(memstore.New(), service.Config{Clock: func() time.Time { return now }})
	c := newTenant(t, svc, "acme")
	pl, err := svc.CreatePlan(t.Context(), c.id, core.PlanPatch{Name: new("m"), Limit: core.Some(int64(100)), Period: new("month")})
	c.ok(err)
	u, err := svc.CreateUser(t.Context(), c.id, core.UserPatch{Name: new("ann"), PlanID: core.Some(pl.ID), CustomStart: core.Some(at("2026-01-15T00:00:00Z"))})
	c.ok(err)
	for _, p := range []core.KeyPatch{{Name: new("shared"), UserID: &u.ID}, {Name: new("own"), UserID: &u.ID, PlanID: core.Some(pl.ID)}} {
		_, secret, err := svc.CreateKey(t.Context(), c.id, p)
		c.ok(err)
		_, err = svc.Validate(t.Context(), c.id, service.Request{Secret: secret, Endpoint: "/x", Method: "GET", Cost: 99})
		c.ok(err)
	}
	for when, want := range map[string]int64{"2026-03-31T23:30:00Z": 99, "2026-04-01T00:30:00Z": 99, "2026-04-15T00:30:00Z": 0} {
		now = at(when)
		near, err := svc.NearLimits(t.Context(), c.id, 10)
		c.ok(err)
		if got := len(near); got != int(want/99*2) {
			t.Errorf("%s: %d counters near the limit, want both while their window is open", when, got)
		}
		totals, err := svc.PlanUsage(t.Context(), c.id, pl.ID)
		c.ok(err)
		if totals.Used != 2*want {
			t.Errorf("%s: the total of the plan is %d, want %d", when, totals.Used, 2*want)
		}
	}
}

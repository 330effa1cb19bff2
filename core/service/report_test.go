package service_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// report returns the rows of a report of this month: "user/key meter allowed denied adjusted used overage", one a line.
func (c *thresholds) report(q service.ReportQuery) string {
	c.Helper()
	y, m, _ := c.now.Date()
	q.First = core.DateOf(time.Date(y, m, 1, 0, 0, 0, 0, time.UTC))
	q.Last = core.DateOf(time.Date(y, m+1, 0, 0, 0, 0, 0, time.UTC))
	var b strings.Builder
	c.ok(c.svc.StreamReport(c.Context(), c.id, q, func(rows []service.ReportRow) error {
		for _, r := range rows {
			who := "deleted"
			if r.User != nil {
				who = r.User.Name
			}
			if r.Key != nil {
				who += "/" + r.Key.Name
			}
			fmt.Fprintf(&b, "%s %s %d %d %d %d %d\n", who, r.Meter, r.Allowed, r.Denied, r.Adjusted, r.Used(), r.Overage)
		}
		return nil
	}))
	return b.String()
}

// wantReport fails unless a report by the members of q has these lines.
func (c *thresholds) wantReport(q service.ReportQuery, want string) {
	c.Helper()
	if got := c.report(q); got != want {
		c.Errorf("the report by %+v: got\n%s\nwant\n%s", q, got, want)
	}
}

// What an adjustment has given back, a settlement does not give back again: the use of the user is that of the counter that decides.
func TestReportAfterRefund(t *testing.T) {
	for _, own := range []bool{false, true} {
		c := newThresholds(t, memstore.New())
		plan := c.plan(1000, core.Limit{Meter: "tokens", Max: 1000, Period: core.Month})
		p := core.KeyPatch{}
		if own {
			p.PlanID = core.Some(plan.ID)
		}
		_, k, secret := c.customer("anna", plan, p)
		d, err := c.svc.Validate(t.Context(), c.id, service.Request{Secret: secret, Endpoint: "/", Method: "GET", Cost: 1, Costs: []core.MeterCost{tokens(100)}, HoldFor: time.Hour})
		c.ok(err)
		_, _, err = c.svc.AdjustKey(t.Context(), c.id, k.ID, service.AdjustmentCall{Adjustment: core.Adjustment{Meter: "tokens", Value: -100, Reason: "goodwill"}})
		c.ok(err)
		_, err = c.svc.Settle(t.Context(), c.id, d.HoldID, &service.Final{Costs: []core.MeterCost{tokens(30)}})
		c.ok(err)
		u, err := c.svc.KeyUsage(t.Context(), c.id, k.ID)
		c.ok(err)
		if used := u.Limits[1].Used; used != 0 {
			t.Errorf("own plan %v: got %d tokens used, want none", own, used)
		}
		c.wantReport(service.ReportQuery{User: true, Meter: true}, "anna requests 1 0 0 1 0\nanna tokens 30 0 -30 0 0\n")
		want := "anna/key of anna requests 1 0 0 1 0\nanna/key of anna tokens 30 0 0 30 0\nanna tokens 0 0 -30 -30 0\n"
		if own {
			want = "anna/key of anna requests 1 0 0 1 0\nanna/key of anna tokens 30 0 -30 0 0\n"
		}
		c.wantReport(service.ReportQuery{Key: true, Meter: true}, want)
	}
}

// An adjustment of the own limits of a key changes nothing that its user pays for.
func TestReportWithoutOwnAdjustments(t *testing.T) {
	c := newThresholds(t, memstore.New())
	_, k, secret := c.customer("anna", c.plan(1000), core.KeyPatch{Limits: core.Some([]core.Limit{{Meter: core.MeterRequests, Max: 20, Period: core.Month}})})
	c.use(secret, 20)
	_, _, err := c.svc.AdjustKey(t.Context(), c.id, k.ID, service.AdjustmentCall{Own: true, Adjustment: core.Adjustment{Meter: core.MeterRequests, Value: -20, Reason: "more"}})
	c.ok(err)
	if d := c.use(secret, 15); !d.Allowed() {
		t.Error("the key was refused after its own usage was adjusted")
	}
	c.wantReport(service.ReportQuery{User: true, Meter: true}, "anna requests 35 0 0 35 0\n")
	c.wantReport(service.ReportQuery{Key: true, Meter: true}, "anna/key of anna requests 35 0 0 35 0\n")
}

// manyPlans is a store with one user, whose 10,000 keys have a plan each, and traffic on every day.
type manyPlans struct {
	core.Store
	read int // counters of keys whose days were read
}

func (s *manyPlans) Users(_ context.Context, account string, _ core.UserFilter, p core.Page) ([]*core.User, int, error) {
	if p.Offset() > 0 {
		return nil, 1, nil
	}
	return []*core.User{{AccountID: account, ID: 1, Name: "anna"}}, 1, nil
}

func (s *manyPlans) Keys(_ context.Context, account string, _ core.KeyFilter, p core.Page) (list []*core.Key, total int, err error) {
	for i := p.Offset(); i < min(10_000, p.Offset()+p.Size); i++ {
		list = append(list, &core.Key{AccountID: account, ID: fmt.Sprint("key_", i), Seq: int64(i + 1), UserID: 1, PlanID: fmt.Sprint("plan_", i)})
	}
	return list, 10_000, nil
}

func (s *manyPlans) DaysOf(_ context.Context, ids []core.CounterID, first, last core.Date) ([][]core.CounterDay, error) {
	lists := make([][]core.CounterDay, len(ids))
	for i, id := range ids {
		if id.KeyID != "" {
			s.read++
		}
		for d := first; d <= last && (id.KeyID != "" || id.UserID != 0); d++ {
			lists[i] = append(lists[i], core.CounterDay{Date: d, Traffic: core.Traffic{Allowed: 1}})
		}
	}
	return lists, nil
}

// A report whose rows need too much memory is refused before it has read them all, also if they are of one user.
func TestReportOfManyPlans(t *testing.T) {
	store := &manyPlans{Store: memstore.New()}
	c := newThresholds(t, store)
	today := core.DateOf(*c.now)
	for _, q := range []service.ReportQuery{{Plan: true, Day: true}, {User: true, Plan: true, Day: true}} {
		q.First, q.Last, store.read = today-core.DaysKept+1, today, 0
		err := c.svc.StreamReport(t.Context(), c.id, q, func([]service.ReportRow) error { return nil })
		if e, ok := errors.AsType[*core.Error](err); !ok || e.Field != "group_by" || store.read > 400 {
			t.Errorf("%+v: got %v after the days of %d keys, want a refusal after at most 400 keys", q, err, store.read)
		}
	}
}

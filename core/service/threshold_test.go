package service_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// thresholds is a test of one tenant and its counters near a limit.
type thresholds struct {
	*tenant
	now *time.Time
}

func newThresholds(t *testing.T, store core.Store) *thresholds {
	now := at("2026-03-05T10:00:00Z")
	svc := service.New(store, service.Config{Clock: func() time.Time { return now }})
	return &thresholds{newTenant(t, svc, "acme"), &now}
}

// plan creates a plan with a limit of requests in a month, 0 for none, and further ones.
func (c *thresholds) plan(requests int64, limits ...core.Limit) *core.Plan {
	p := core.PlanPatch{Name: new("plan"), Limit: core.Some(requests), Period: new("month"), Limits: core.Some(limits)}
	if requests == 0 {
		p.Limit = core.Null[int64]()
	}
	pl, err := c.svc.CreatePlan(c.Context(), c.id, p)
	c.ok(err)
	return pl
}

// customer creates a user with a plan, and a key with the members of a patch.
func (c *thresholds) customer(name string, plan *core.Plan, p core.KeyPatch) (*core.User, *core.Key, string) {
	u, err := c.svc.CreateUser(c.Context(), c.id, core.UserPatch{Name: &name, PlanID: core.Some(plan.ID)})
	c.ok(err)
	p.Name, p.UserID = new("key of "+name), &u.ID
	k, secret, err := c.svc.CreateKey(c.Context(), c.id, p)
	c.ok(err)
	return u, k, secret
}

func (c *thresholds) use(secret string, requests int64, costs ...core.MeterCost) service.Decision {
	d, err := c.svc.Validate(c.Context(), c.id, service.Request{Secret: secret, Endpoint: "/", Method: "GET", Cost: requests, Costs: costs})
	c.ok(err)
	return d
}

func tokens(n int64) core.MeterCost { return core.MeterCost{Meter: "tokens", Cost: n} }

// want fails unless the counters at or over a share are these: "name [key] of meter/period used/max denied", joined by "; ".
func (c *thresholds) want(over int64, meter, want string) {
	c.Helper()
	list, err := c.svc.Thresholds(c.Context(), c.id, over, meter, core.Page{Number: 1, Size: 100})
	c.ok(err)
	if got := describe(list.Counters); got != want || list.Total != len(list.Counters) {
		c.Errorf("over %d of %q: got %d\n%s\nwant\n%s", over, meter, list.Total, got, want)
	}
}

func describe(list []service.FullCounter) string {
	var all []string
	for _, f := range list {
		key := ""
		if f.Key != nil {
			key = "[key] "
		}
		all = append(all, fmt.Sprintf("%s %s%s %s/%v %d/%d %d denied", f.User.Name, key, f.Of, f.Meter, f.Period, f.Used, f.Max, f.Denied))
	}
	return strings.Join(all, "; ")
}

// Every limit counts: of the plan in any meter and period, of an override, of a key inside a shared plan, and of a plan without a primary limit.
func TestThresholdsOfEveryLimit(t *testing.T) {
	c := newThresholds(t, memstore.New())
	credits := core.Limit{Meter: "tokens", Max: 100_000, Period: core.Lifetime}
	_, _, secret := c.customer("lifetime", c.plan(0, credits), core.KeyPatch{})
	c.use(secret, 1, tokens(99_000))
	perMinute := c.plan(1000, core.Limit{Meter: core.MeterRequests, Max: 60, Period: core.Minute})
	_, _, secret = c.customer("minute", perMinute, core.KeyPatch{})
	c.use(secret, 60)
	if d := c.use(secret, 1); d.Allowed() {
		t.Fatal("the 61st request of a minute was allowed")
	}
	u, _, secret := c.customer("override", c.plan(1000), core.KeyPatch{})
	_, err := c.svc.UpdateUser(t.Context(), c.id, u.ID, core.UserPatch{Overrides: core.Some([]core.Override{{Meter: core.MeterRequests, Period: core.Month, Max: 10}})})
	c.ok(err)
	c.use(secret, 8)
	_, _, secret = c.customer("own", c.plan(1000), core.KeyPatch{Limits: core.Some([]core.Limit{{Meter: "tokens", Max: 200, Period: core.Day}})})
	c.use(secret, 1, tokens(170))
	watched := core.Limit{Meter: "tokens", Max: 100, Period: core.Month, OnExceed: core.AllowExceed}
	_, _, secret = c.customer("overage", c.plan(1000, watched), core.KeyPatch{})
	c.use(secret, 1, tokens(250))
	_, _, secret = c.customer("little", c.plan(1000), core.KeyPatch{})
	c.use(secret, 499)

	const overage, minute, lifetime = "overage plan tokens/month 250/100 0 denied", "minute plan requests/minute 60/60 1 denied", "lifetime plan tokens/lifetime 99000/100000 0 denied"
	const own, override = "own [key] key tokens/day 170/200 0 denied", "override user requests/month 8/10 0 denied"
	c.want(80, "", strings.Join([]string{overage, minute, lifetime, own, override}, "; "))
	c.want(81, "", strings.Join([]string{overage, minute, lifetime, own}, "; "))
	c.want(101, "", overage)
	c.want(80, "tokens", strings.Join([]string{overage, lifetime, own}, "; "))
	c.want(80, core.MeterRequests, minute+"; "+override)
	*c.now = c.now.Add(time.Minute)
	c.want(80, core.MeterRequests, override)
	*c.now = at("2026-04-01T00:00:00Z")
	c.want(50, "", lifetime)
}

// The list follows changes of usage or limits without a request: adjustments, settlements, other plans, overrides and limits, and deletions.
func TestThresholdsFollowChanges(t *testing.T) {
	c := newThresholds(t, memstore.New())
	pl := c.plan(100, core.Limit{Meter: "tokens", Max: 1000, Period: core.Month})
	u, k, secret := c.customer("ann", pl, core.KeyPatch{})
	ann := func(used, max int64) string { return fmt.Sprintf("ann plan requests/month %d/%d 0 denied", used, max) }
	adjust := func(delta int64) {
		t.Helper()
		_, _, err := c.svc.AdjustUser(t.Context(), c.id, u.ID, service.AdjustmentCall{Adjustment: core.Adjustment{Meter: core.MeterRequests, Value: delta, Reason: "test"}})
		c.ok(err)
	}
	c.use(secret, 85)
	c.want(80, "", ann(85, 100))
	adjust(-10)
	c.want(80, "", "")
	adjust(+15)
	c.want(80, "", ann(90, 100))

	_, err := c.svc.UpdatePlan(t.Context(), c.id, pl.ID, core.PlanPatch{Limit: core.Some(int64(1000))})
	c.ok(err)
	c.want(80, "", "")
	_, err = c.svc.UpdatePlan(t.Context(), c.id, pl.ID, core.PlanPatch{Limit: core.Some(int64(90))})
	c.ok(err)
	c.want(80, "", ann(90, 90))
	other := c.plan(10_000)
	_, err = c.svc.UpdateUser(t.Context(), c.id, u.ID, core.UserPatch{PlanID: core.Some(other.ID)})
	c.ok(err)
	c.want(80, "", "")
	_, err = c.svc.UpdateUser(t.Context(), c.id, u.ID, core.UserPatch{PlanID: core.Some(pl.ID)})
	c.ok(err)
	c.want(80, "", ann(90, 90))
	adjust(-90)
	c.want(80, "", "")

	d, err := c.svc.Validate(t.Context(), c.id, service.Request{Secret: secret, Endpoint: "/", Method: "POST", Cost: 1, HoldFor: time.Minute, Costs: []core.MeterCost{tokens(1)}})
	c.ok(err)
	_, err = c.svc.Settle(t.Context(), c.id, d.HoldID, &service.Final{Costs: []core.MeterCost{tokens(900)}})
	c.ok(err)
	c.want(80, "", "ann plan tokens/month 900/1000 0 denied")

	_, err = c.svc.UpdateKey(t.Context(), c.id, k.ID, core.KeyPatch{PlanID: core.Some(pl.ID)})
	c.ok(err)
	c.want(80, "", "ann [key] plan requests/month 86/90 0 denied; ann plan tokens/month 900/1000 0 denied")
	override := func(list ...core.Override) {
		t.Helper()
		_, err = c.svc.UpdateUser(t.Context(), c.id, u.ID, core.UserPatch{Overrides: core.Some(list)})
		c.ok(err)
	}
	override(core.Override{Meter: core.MeterRequests, Period: core.Month, Max: 1000})
	c.want(80, "", "ann plan tokens/month 900/1000 0 denied; ann [key] plan tokens/month 900/1000 0 denied")
	override() // the limits of the keys follow
	c.want(80, "", "ann [key] plan requests/month 86/90 0 denied; ann plan tokens/month 900/1000 0 denied")
	c.ok(c.svc.DeleteKey(t.Context(), c.id, k.ID))
	c.want(80, "", "ann plan tokens/month 900/1000 0 denied")
	c.ok(c.svc.DeleteUser(t.Context(), c.id, u.ID))
	c.want(80, "", "")
}

// A counter that falls and rises to the same share again is in the list again: a hold of the usual size is released and taken, over and over.
func TestThresholdsAfterAReleasedHold(t *testing.T) {
	c := newThresholds(t, memstore.New())
	_, _, secret := c.customer("ann", c.plan(0, core.Limit{Meter: "tokens", Max: 1000, Period: core.Month}), core.KeyPatch{})
	c.use(secret, 1, tokens(600))
	for range 3 {
		d, err := c.svc.Validate(t.Context(), c.id, service.Request{Secret: secret, Endpoint: "/", Method: "POST", HoldFor: time.Minute, Costs: []core.MeterCost{tokens(200)}})
		c.ok(err)
		c.want(80, "", "ann plan tokens/month 800/1000 0 denied")
		_, err = c.svc.Settle(t.Context(), c.id, d.HoldID, &service.Final{Costs: []core.MeterCost{tokens(0)}})
		c.ok(err)
		c.want(80, "", "")
	}
}

// A customer whose windows begin on the 15th stays in the list when the month of the calendar ends, and its key with a plan of its own, too. The
// totals of the plan agree.
func TestThresholdsOfAnchoredUser(t *testing.T) {
	c := newThresholds(t, memstore.New())
	*c.now = at("2026-03-31T23:00:00Z")
	pl := c.plan(100)
	u, err := c.svc.CreateUser(t.Context(), c.id, core.UserPatch{Name: new("ann"), PlanID: core.Some(pl.ID), CustomStart: core.Some(at("2026-01-15T00:00:00Z"))})
	c.ok(err)
	for _, p := range []core.KeyPatch{{Name: new("shared"), UserID: &u.ID}, {Name: new("own"), UserID: &u.ID, PlanID: core.Some(pl.ID)}} {
		_, secret, err := c.svc.CreateKey(t.Context(), c.id, p)
		c.ok(err)
		c.use(secret, 99)
	}
	for i, when := range []string{"2026-03-31T23:30:00Z", "2026-04-01T00:30:00Z", "2026-04-15T00:30:00Z"} {
		want := []int64{99, 99, 0}[i]
		*c.now = at(when)
		list, err := c.svc.Thresholds(t.Context(), c.id, 80, "", core.Page{Number: 1, Size: 10})
		c.ok(err)
		if got := len(list.Counters); got != int(want/99*2) {
			t.Errorf("%s: %d counters near the limit, want both while their window is open", when, got)
		}
		totals, err := c.svc.PlanUsage(t.Context(), c.id, pl.ID)
		c.ok(err)
		if totals.Used != 2*want {
			t.Errorf("%s: the total of the plan is %d, want %d", when, totals.Used, 2*want)
		}
	}
}

// forgetful is a store that has lost its rankings, as after a restart.
type forgetful struct {
	core.Store
	lost bool
}

func (s *forgetful) Ranking(ctx context.Context, account string, q core.RankingQuery, p core.Page) (core.Ranking, error) {
	if !s.lost {
		return s.Store.Ranking(ctx, account, q, p)
	}
	s.lost = false
	all, err := s.Store.Ranking(ctx, account, core.RankingQuery{}, core.Page{Number: 1, Size: core.MaxRanked})
	for _, c := range all.Counters {
		c.Exact, c.Fills = true, nil
		if err == nil {
			err = s.Store.Rank(ctx, account, []core.Ranked{c}, false)
		}
	}
	if err == nil {
		err = s.CompleteRanking(ctx, account, time.Time{})
	}
	return core.Ranking{}, err
}

// A lost ranking is rebuilt: with the counters of users, of keys with a plan of their own, and of keys with own limits. The answers of a large account say meanwhile
// that they are not complete.
func TestThresholdsAfterALoss(t *testing.T) {
	store := &forgetful{Store: memstore.New()}
	c := newThresholds(t, store)
	pl := c.plan(100)
	_, _, shared := c.customer("shared", pl, core.KeyPatch{})
	_, _, own := c.customer("own plan", pl, core.KeyPatch{PlanID: core.Some(pl.ID)})
	_, _, limited := c.customer("own limit", pl, core.KeyPatch{Limits: core.Some([]core.Limit{{Meter: core.MeterRequests, Max: 40, Period: core.Day}})})
	for i, secret := range []string{shared, own, limited} {
		c.use(secret, 99-31*int64(i))
	}
	const all = "shared plan requests/month 99/100 0 denied; own limit [key] key requests/day 37/40 0 denied; own plan [key] plan requests/month 68/100 0 denied"
	c.want(60, "", all)
	store.lost = true
	c.want(60, "", all)

	for range core.ReadSize {
		_, err := c.svc.CreateUser(t.Context(), c.id, core.UserPatch{Name: new("one of many")})
		c.ok(err)
	}
	store.lost = true
	list, err := c.svc.Thresholds(t.Context(), c.id, 60, "", core.Page{Number: 1, Size: 10})
	c.ok(err)
	if len(list.Counters) > 0 || list.Complete {
		t.Errorf("a large account after a loss: got %s, complete %v, want none, and an incomplete answer", describe(list.Counters), list.Complete)
	}
	c.ok(c.svc.RankAccounts(t.Context()))
	c.want(60, "", all)
	if list, err = c.svc.Thresholds(t.Context(), c.id, 60, "", core.Page{Number: 2, Size: 2}); err != nil || list.Total != 3 || len(list.Counters) != 1 || !list.Complete {
		t.Errorf("the second page: got %d of %d, complete %v, %v", len(list.Counters), list.Total, list.Complete, err)
	}
}

// Another limit of a plan changes the list of a large account as soon as RankAccounts has read its counters. Until then the answers say that they are not
// complete.
func TestThresholdsAfterAnotherLimit(t *testing.T) {
	c := newThresholds(t, memstore.New())
	pl := c.plan(100)
	_, _, secret := c.customer("ann", pl, core.KeyPatch{})
	for range core.ReadSize {
		_, err := c.svc.CreateUser(t.Context(), c.id, core.UserPatch{Name: new("one of many")})
		c.ok(err)
	}
	c.use(secret, 40)
	c.ok(c.svc.RankAccounts(t.Context()))
	c.want(80, "", "")
	for limit, want := range map[int64]int{50: 1, 40: 1, 1000: 0} {
		_, err := c.svc.UpdatePlan(t.Context(), c.id, pl.ID, core.PlanPatch{Limit: core.Some(limit)})
		c.ok(err)
		for _, complete := range []bool{false, true} {
			list, err := c.svc.Thresholds(t.Context(), c.id, 80, "", core.Page{Number: 1, Size: 10})
			c.ok(err)
			if list.Complete != complete || complete && list.Total != want {
				t.Errorf("limit %d: got %d, complete %v, want %d, complete %v", limit, list.Total, list.Complete, want, complete)
			}
			c.ok(c.svc.KeepRankings(t.Context()))
			c.ok(c.svc.RankAccounts(t.Context()))
		}
	}
}

// dayReads is a store that counts the calls of DaysOf.
type dayReads struct {
	core.Store
	calls int
}

func (s *dayReads) DaysOf(ctx context.Context, ids []core.CounterID, first, last core.Date) ([][]core.CounterDay, error) {
	s.calls++
	return s.Store.DaysOf(ctx, ids, first, last)
}

// Each limit of each counter on a page says when it is used up, as the usage of its key and user does: of a plan, of a key, of the traffic that a user shares. One read
// serves a whole page.
func TestThresholdsForecast(t *testing.T) {
	store := &dayReads{Store: memstore.New()}
	c := newThresholds(t, store)
	*c.now = at("2026-03-01T12:00:00Z")
	pl := c.plan(200, core.Limit{Meter: "tokens", Max: 1000, Period: core.Lifetime})
	credits := core.KeyPatch{Limits: core.Some([]core.Limit{{Meter: core.MeterRequests, Max: 190, Period: core.Year}})}
	var keys []*core.Key
	var users []*core.User
	for i, p := range []core.KeyPatch{credits, {PlanID: core.Some(pl.ID)}} {
		*c.now = at("2026-03-01T12:00:00Z")
		u, k, secret := c.customer(fmt.Sprint("customer ", i), pl, p)
		for range 16 { // 10 requests and 50 tokens a day
			c.use(secret, 10, tokens(50))
			*c.now = c.now.AddDate(0, 0, 1)
		}
		keys, users = append(keys, k), append(users, u)
	}
	store.calls = 0
	list, err := c.svc.Thresholds(t.Context(), c.id, 60, "", core.Page{Number: 1, Size: 100})
	c.ok(err)
	if len(list.Counters) != 3 || store.calls != 1 {
		t.Fatalf("got %s in %d reads of days, want 3 counters in one read", describe(list.Counters), store.calls)
	}
	// 60 requests were allowed in the 6.5 days before 12:00 on the 17th, and 300 tokens.
	const shared, own = "requests/month 2026-03-21T20:00:00Z, tokens/lifetime 2026-03-21T20:00:00Z", "requests/year 2026-03-20T18:00:00Z"
	forecasts := func(limits []core.LimitUsage, at []time.Time) string {
		var all []string
		for i, u := range limits {
			all = append(all, fmt.Sprintf("%s/%v %s", u.Meter, u.Period, at[i].Format(time.RFC3339)))
		}
		return strings.Join(all, ", ")
	}
	for _, f := range list.Counters {
		want := shared
		if f.Key != nil && f.Key.ID == keys[0].ID {
			want = own
		}
		if got := forecasts(f.Limits, f.ExhaustsAt); got != want {
			t.Errorf("%s: got %s, want %s", describe([]service.FullCounter{f}), got, want)
		}
		if f.Limits[f.Fullest] != f.LimitUsage {
			t.Errorf("the fullest limit of %v is %v, want %v", f.Limits, f.Limits[f.Fullest], f.LimitUsage)
		}
	}
	usage, err := c.svc.KeyUsage(t.Context(), c.id, keys[0].ID)
	c.ok(err)
	if got, want := forecasts(usage.Limits, usage.ExhaustsAt), shared+", "+own; got != want {
		t.Errorf("usage of the key: got %s, want %s", got, want)
	}
	ofUser, err := c.svc.UserUsage(t.Context(), c.id, users[1].ID)
	c.ok(err)
	if got := forecasts(ofUser.Counters[0].Limits, ofUser.Counters[0].ExhaustsAt); got != shared {
		t.Errorf("usage of the user: got %s, want %s", got, shared)
	}
}

// Thresholds refuses a share out of bounds and an unknown meter.
func TestThresholdsAreChecked(t *testing.T) {
	c := newThresholds(t, memstore.New())
	for field, ask := range map[string]func() error{
		"over": func() error {
			_, err := c.svc.Thresholds(t.Context(), c.id, 49, "", core.Page{Number: 1, Size: 1})
			return err
		},
		"meter": func() error {
			_, err := c.svc.Thresholds(t.Context(), c.id, 80, "tokenz", core.Page{Number: 1, Size: 1})
			return err
		},
	} {
		if err := ask(); err == nil || err.(*core.Error).Field != field {
			t.Errorf("%s: got %v, want an error of this field", field, err)
		}
	}
}

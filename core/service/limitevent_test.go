package service_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// events is a test of one tenant and its events of limits.
type events struct {
	*thresholds
	store    core.Store
	mu       sync.Mutex
	reported []*core.Event // to OnEvent, since the last call of want
	total    int           // of all calls of want
}

func newEvents(t *testing.T, store core.Store) *events {
	now := at("2026-03-05T10:00:00Z")
	e := &events{store: store}
	svc := e.node(t, &now)
	e.thresholds = &thresholds{newTenant(t, svc, "acme"), &now}
	return e
}

// node returns another service on the store.
func (e *events) node(_ *testing.T, now *time.Time) *service.Service {
	return service.New(e.store, service.Config{Clock: func() time.Time { return *now }, OnEvent: func(_ string, ev *core.Event) {
		if strings.HasPrefix(ev.Type, "limitkeeper.key_created") {
			return
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		e.reported = append(e.reported, ev)
	}})
}

// limitEvent is the data of the events of limits.
type limitEvent struct {
	UserID     int64  `json:"user_id"`
	KeyID      string `json:"key_id"`
	PlanID     string `json:"plan_id"`
	Meter      string `json:"meter"`
	Period     string `json:"period"`
	Threshold  int    `json:"threshold"`
	Used       int64  `json:"used"`
	Max        int64  `json:"max"`
	ResetTime  string `json:"reset_time"`
	ExhaustsAt string `json:"exhausts_at"`
}

func (e *events) dataOf(ev *core.Event) (d limitEvent) {
	e.ok(json.Unmarshal(ev.Data, &d))
	return d
}

// describeEvent returns "type [threshold] subject meter/period used/max".
func (e *events) describeEvent(ev *core.Event) string {
	d, kind := e.dataOf(ev), strings.TrimPrefix(ev.Type, "limitkeeper.")
	if ev.Type == core.EventThreshold {
		kind += fmt.Sprint(" ", d.Threshold)
	}
	return fmt.Sprintf("%s %s %s/%s %d/%d", kind, ev.Subject, d.Meter, d.Period, d.Used, d.Max)
}

// limitsOnly are the types of events that most tests look at: a forecast has its own test.
func limitsOnly(ev *core.Event) bool {
	return ev.Type == core.EventThreshold || ev.Type == core.EventExhausted
}

// want writes the events of a node, and fails unless these thresholds and exhausted limits were reported since the last call, and are all in the store.
func (e *events) want(nodes []*service.Service, want ...string) {
	e.Helper()
	for _, svc := range nodes {
		e.ok(svc.KeepRankings(e.Context()))
	}
	for _, svc := range nodes {
		e.ok(svc.WriteEvents(e.Context()))
	}
	var got []string
	for _, ev := range e.reported {
		if limitsOnly(ev) {
			got = append(got, e.describeEvent(ev))
		}
	}
	e.reported = nil
	if diff := cmp.Diff(want, got); diff != "" {
		e.Errorf("(-want +got)\n%s", diff)
	}
	e.total += len(got)
	if stored := slices.DeleteFunc(e.stored(), func(ev *core.Event) bool { return !limitsOnly(ev) }); len(stored) != e.total {
		e.Errorf("the store has %d events, want %d", len(stored), e.total)
	}
}

func (e *events) stored() []*core.Event {
	list, _, err := e.store.Events(e.Context(), e.id, core.EventFilter{}, 0, 1_000_000)
	e.ok(err)
	return list
}

func (e *events) here() []*service.Service { return []*service.Service{e.svc} }

func (e *events) adjust(u *core.User, delta int64) {
	e.Helper()
	_, _, err := e.svc.AdjustUser(e.Context(), e.id, u.ID, service.AdjustmentCall{Adjustment: core.Adjustment{Meter: core.MeterRequests, Value: delta, Reason: "test"}})
	e.ok(err)
}

// Each threshold causes one event in a window: when the counter falls and rises again, when it is refused, and after 10 minutes. The next window causes it again.
func TestThresholdEvents(t *testing.T) {
	e := newEvents(t, memstore.New())
	u, _, secret := e.customer("ann", e.plan(100), core.KeyPatch{})
	e.use(secret, 79)
	e.want(e.here())
	e.use(secret, 1)
	e.want(e.here(), "threshold 80 user_2 requests/month 80/100")
	e.adjust(u, -40)
	e.want(e.here())
	e.use(secret, 41)
	e.want(e.here())
	e.use(secret, 19)
	e.want(e.here(), "threshold 100 user_2 requests/month 100/100", "exhausted user_2 requests/month 100/100")
	if d := e.use(secret, 1); d.Allowed() {
		t.Fatal("the 101st request was allowed")
	}
	e.adjust(u, -100)
	e.use(secret, 100)
	*e.now = e.now.Add(time.Hour)
	e.use(secret, 1)
	e.ok(e.svc.RankAccounts(t.Context()))
	e.want(e.here())
	*e.now = at("2026-04-30T23:59:59Z")
	e.use(secret, 85)
	e.want(e.here(), "threshold 80 user_2 requests/month 85/100")
	e.adjust(u, 15)
	*e.now = at("2026-05-01T00:00:00Z") // the next window is open when the event is written
	e.want(e.here(), "threshold 100 user_2 requests/month 100/100", "exhausted user_2 requests/month 100/100")
	e.want(e.here())
}

// The data of an event says which limit of which customer, and when it resets. Events that no webhook wants have no data in the store.
func TestDataOfLimitEvents(t *testing.T) {
	e := newEvents(t, memstore.New())
	pl := e.plan(100)
	u, _, secret := e.customer("ann", pl, core.KeyPatch{})
	_, own, _ := e.customer("bob", pl, core.KeyPatch{PlanID: core.Some(pl.ID), Limits: core.Some([]core.Limit{{Meter: "tokens", Max: 10, Period: core.Lifetime}})})
	e.use(secret, 100)
	e.ok(e.svc.WriteEvents(t.Context()))
	e.wantData(0, limitEvent{UserID: u.ID, PlanID: pl.ID, Meter: "requests", Period: "month", Threshold: 80, Used: 100, Max: 100, ResetTime: "2026-04-01T00:00:00Z"})
	e.wantData(2, limitEvent{UserID: u.ID, PlanID: pl.ID, Meter: "requests", Period: "month", Threshold: 100, Used: 100, Max: 100, ResetTime: "2026-04-01T00:00:00Z"})
	e.reported = nil
	_, _, err := e.svc.AdjustKey(t.Context(), e.id, own.ID, service.AdjustmentCall{Adjustment: core.Adjustment{Meter: "tokens", Value: 8, Reason: "test"}})
	e.ok(err)
	e.ok(e.svc.KeepRankings(t.Context()))
	e.ok(e.svc.WriteEvents(t.Context()))
	e.wantData(0, limitEvent{UserID: own.UserID, KeyID: own.ID, PlanID: pl.ID, Meter: "tokens", Period: "lifetime", Threshold: 80, Used: 8, Max: 10})
	for _, ev := range e.stored() {
		if ev.Data != nil || ev.Deliveries != nil {
			t.Errorf("the store has the data %s of an event that no webhook wants", ev.Data)
		}
	}
}

func (e *events) wantData(n int, want limitEvent) {
	e.Helper()
	if n >= len(e.reported) {
		e.Fatalf("got %d events, want %d", len(e.reported), n+1)
	}
	if diff := cmp.Diff(want, e.dataOf(e.reported[n])); diff != "" {
		e.Errorf("event %d: (-want +got)\n%s", n, diff)
	}
}

// Every limit of a counter causes events: of any meter and period of the plan, of an override, and of a key inside a shared plan. A limit of a minute causes events after
// its window has ended.
func TestEventsOfEveryLimit(t *testing.T) {
	e := newEvents(t, memstore.New())
	_, _, secret := e.customer("minute", e.plan(1000, core.Limit{Meter: core.MeterRequests, Max: 60, Period: core.Minute}, core.Limit{Meter: "tokens", Max: 1000, Period: core.Lifetime}), core.KeyPatch{})
	*e.now = at("2026-03-05T10:00:59Z")
	e.use(secret, 50, tokens(990))
	*e.now = at("2026-03-05T10:01:01Z")
	e.want(e.here(), "threshold 80 user_2 requests/minute 50/60", "threshold 80 user_2 tokens/lifetime 990/1000")
	e.use(secret, 60)
	e.want(e.here(), "threshold 80 user_2 requests/minute 60/60", "threshold 100 user_2 requests/minute 60/60", "exhausted user_2 requests/minute 60/60")

	u, k, secret := e.customer("override", e.plan(1000), core.KeyPatch{Limits: core.Some([]core.Limit{{Meter: "tokens", Max: 200, Period: core.Day}})})
	_, err := e.svc.UpdateUser(t.Context(), e.id, u.ID, core.UserPatch{Overrides: core.Some([]core.Override{{Meter: core.MeterRequests, Period: core.Month, Max: 10}})})
	e.ok(err)
	e.use(secret, 8, tokens(170))
	e.want(e.here(), "threshold 80 user_3 requests/month 8/10", "threshold 80 "+k.ID+" tokens/day 170/200")

	_, own, secret := e.customer("own", e.plan(100), core.KeyPatch{PlanID: core.Some(e.plan(10).ID)})
	e.use(secret, 9)
	e.want(e.here(), "threshold 80 "+own.ID+" requests/month 9/10")

	watched := core.Limit{Meter: "tokens", Max: 100, Period: core.Month, OnExceed: core.AllowExceed}
	_, _, secret = e.customer("overage", e.plan(1000, watched), core.KeyPatch{})
	e.use(secret, 1, tokens(250))
	e.want(e.here(), "threshold 80 user_5 tokens/month 250/100", "threshold 100 user_5 tokens/month 250/100", "exhausted user_5 tokens/month 250/100")
}

// A limit with another maximum is another limit: a raised one causes events when its own thresholds are reached, a lowered one at once. A maximum that
// comes back causes no event again.
func TestEventsOfChangedLimits(t *testing.T) {
	e := newEvents(t, memstore.New())
	pl := e.plan(100)
	_, _, secret := e.customer("ann", pl, core.KeyPatch{})
	limit := func(n int64) {
		t.Helper()
		_, err := e.svc.UpdatePlan(t.Context(), e.id, pl.ID, core.PlanPatch{Limit: core.Some(n)})
		e.ok(err)
		e.ok(e.svc.RankAccounts(t.Context()))
	}
	e.use(secret, 100)
	e.want(e.here(), "threshold 80 user_2 requests/month 100/100", "threshold 100 user_2 requests/month 100/100", "exhausted user_2 requests/month 100/100")
	limit(1000)
	e.want(e.here())
	e.use(secret, 700)
	e.want(e.here(), "threshold 80 user_2 requests/month 800/1000")
	limit(800)
	e.want(e.here(), "threshold 80 user_2 requests/month 800/800", "threshold 100 user_2 requests/month 800/800", "exhausted user_2 requests/month 800/800")
	for _, n := range []int64{1000, 100, 800} {
		limit(n)
		e.want(e.here())
	}
}

// A custom_start that moves the window of a user does not repeat events of usage that still counts.
func TestEventsAfterANewAnchor(t *testing.T) {
	e := newEvents(t, memstore.New())
	*e.now = at("2026-03-10T00:00:00Z")
	u, _, secret := e.customer("ann", e.plan(100), core.KeyPatch{})
	e.use(secret, 95)
	e.want(e.here(), "threshold 80 user_2 requests/month 95/100")
	*e.now = at("2026-03-20T00:00:00Z")
	_, err := e.svc.UpdateUser(t.Context(), e.id, u.ID, core.UserPatch{CustomStart: core.Some(at("2026-01-25T00:00:00Z"))})
	e.ok(err)
	e.want(e.here())
	for _, day := range []string{"2026-03-24T23:00:00Z", "2026-03-26T00:00:00Z", "2026-04-24T23:00:00Z"} {
		*e.now = at(day)
		e.use(secret, 1)
		e.ok(e.svc.RankAccounts(t.Context()))
	}
	e.want(e.here()) // 98 of 100
	*e.now = at("2026-04-25T00:00:00Z")
	e.use(secret, 80)
	e.want(e.here(), "threshold 80 user_2 requests/month 80/100")
}

// 64 callers on two nodes go through 80 and 100 per cent while both nodes write events: each event is stored once, and one node reports it.
func TestEventsOfConcurrentCallers(t *testing.T) {
	e := newEvents(t, memstore.New())
	_, _, secret := e.customer("ann", e.plan(1000, core.Limit{Meter: "tokens", Max: 500, Period: core.Day}), core.KeyPatch{})
	nodes := []*service.Service{e.svc, e.node(t, e.now)}
	var callers, writers sync.WaitGroup
	var done atomic.Bool
	for i := range 64 {
		callers.Go(func() {
			for range 20 {
				_, err := nodes[i%2].Validate(t.Context(), e.id, service.Request{Secret: secret, Endpoint: "/", Method: "GET", Cost: 1, Costs: []core.MeterCost{tokens(1)}})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	for _, svc := range nodes {
		writers.Go(func() {
			for !done.Load() {
				if err := errors.Join(svc.WriteEvents(t.Context()), svc.RankAccounts(t.Context())); err != nil {
					t.Error(err)
				}
			}
		})
	}
	callers.Wait()
	done.Store(true)
	writers.Wait()
	for _, svc := range nodes {
		e.ok(svc.WriteEvents(t.Context()))
	}
	var got []string
	for _, ev := range e.stored() {
		if limitsOnly(ev) {
			got = append(got, strings.TrimPrefix(ev.Type, "limitkeeper."))
		}
	}
	reported := slices.DeleteFunc(e.reported, func(ev *core.Event) bool { return !limitsOnly(ev) })
	if want := []string{"threshold", "threshold", "exhausted"}; !slices.Equal(got, want) || len(reported) != len(want) {
		t.Errorf("the store has %v, and %d were reported, want %v", got, len(reported), want)
	}
}

// After a crash of a service before it wrote events, the next service makes the events from the counters: also the events of a window that has ended
// meanwhile.
func TestEventsAfterACrash(t *testing.T) {
	e := newEvents(t, memstore.New())
	_, _, secret := e.customer("ann", e.plan(100, core.Limit{Meter: core.MeterRequests, Max: 80, Period: core.Minute}), core.KeyPatch{})
	e.ok(e.svc.RankAccounts(t.Context()))
	*e.now = at("2026-03-05T10:00:59Z")
	e.use(secret, 80)
	*e.now = at("2026-03-05T10:02:30Z")
	restarted := []*service.Service{e.node(t, e.now)}
	e.want(restarted)
	e.ok(restarted[0].RankAccounts(t.Context()))
	slices.SortFunc(e.reported, func(a, b *core.Event) int { return strings.Compare(e.describeEvent(a), e.describeEvent(b)) })
	e.want(restarted, "threshold 80 user_2 requests/minute 80/80", "threshold 100 user_2 requests/minute 80/80", "exhausted user_2 requests/minute 80/80", "threshold 80 user_2 requests/month 80/100")

	for range 2 { // a start without anything new, now and after the ids could be forgotten
		restarted = []*service.Service{e.node(t, e.now)}
		e.ok(restarted[0].RankAccounts(t.Context()))
		e.want(restarted)
		*e.now = at("2026-03-05T11:30:00Z")
	}
}

// failingEvents is a store that cannot store events while it says so.
type failingEvents struct {
	core.Store
	fails atomic.Bool
}

func (s *failingEvents) Update(ctx context.Context, account string, fn func(core.Tx) error) error {
	if s.fails.Load() {
		return core.Unavailable(errors.New("no answer"))
	}
	return s.Store.Update(ctx, account, fn)
}

// silentStore counts requests and settlements, and answers as a store whose answer is lost.
type silentStore struct {
	core.Store
	silent bool
}

func (s *silentStore) Consume(ctx context.Context, c *core.Consumption) (core.ConsumeResult, error) {
	v, err := s.Store.Consume(ctx, c)
	if s.silent {
		return core.ConsumeResult{}, core.Unavailable(errors.New("no answer"))
	}
	return v, err
}

func (s *silentStore) Settle(ctx context.Context, c *core.Consumption) (*core.Hold, bool, error) {
	h, repeated, err := s.Store.Settle(ctx, c)
	if s.silent {
		return nil, false, core.Unavailable(errors.New("no answer"))
	}
	return h, repeated, err
}

// A request that was counted without an answer causes its events, also if the next one repeats it by its id.
func TestEventsWithoutAnswer(t *testing.T) {
	store := &silentStore{Store: memstore.New()}
	e := newEvents(t, store)
	shared, own := e.plan(100), e.plan(10)
	_, _, first := e.customer("ann", shared, core.KeyPatch{})
	_, k, second := e.customer("bob", shared, core.KeyPatch{PlanID: core.Some(own.ID)})
	for _, silent := range []bool{true, false} {
		store.silent = silent
		for secret, cost := range map[string]int64{first: 85, second: 10} {
			r := service.Request{Secret: secret, Endpoint: "/", Method: "GET", Cost: cost, RequestID: "1"}
			if d, err := e.svc.Validate(t.Context(), e.id, r); (err != nil) != silent || !silent && !d.Repeated {
				t.Errorf("got %+v, %v", d, err)
			}
		}
	}
	e.ok(e.svc.KeepRankings(t.Context()))
	e.ok(e.svc.WriteEvents(t.Context()))
	slices.SortFunc(e.reported, func(a, b *core.Event) int { return strings.Compare(e.describeEvent(a), e.describeEvent(b)) })
	key := k.ID + " requests/month 10/10"
	e.want(e.here(), "exhausted "+key, "threshold 100 "+key, "threshold 80 "+key, "threshold 80 user_2 requests/month 85/100")
}

// A settlement that was counted without an answer causes its events.
func TestEventsOfSettlementWithoutAnswer(t *testing.T) {
	store := &silentStore{Store: memstore.New()}
	e := newEvents(t, store)
	_, _, secret := e.customer("ann", e.plan(100, core.Limit{Meter: "tokens", Max: 100, Period: core.Month}), core.KeyPatch{})
	d, err := e.svc.Validate(t.Context(), e.id, service.Request{Secret: secret, Endpoint: "/", Method: "GET", Cost: 1, HoldFor: time.Hour, Costs: []core.MeterCost{tokens(10)}})
	e.ok(err)
	store.silent = true
	if _, err := e.svc.Settle(t.Context(), e.id, d.HoldID, &service.Final{Costs: []core.MeterCost{tokens(85)}}); !errors.Is(err, core.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	store.silent = false
	e.ok(e.svc.KeepRankings(t.Context()))
	e.ok(e.svc.WriteEvents(t.Context()))
	e.want(e.here(), "threshold 80 user_2 tokens/month 85/100")
}

// Events wait while the store is unavailable. More than fit into memory are found in the counters, ten minutes later.
func TestMoreEventsThanFit(t *testing.T) {
	store := &failingEvents{Store: memstore.New()}
	e := newEvents(t, store)
	var limits []core.Limit
	for i := range core.MaxLimits {
		limits = append(limits, core.Limit{Meter: fmt.Sprint("meter_", i), Max: 100, Period: core.Lifetime})
	}
	pl := e.plan(100, limits...)
	const users = 700 // 700 × 16 limits are more than 10,000
	costs := make([]core.MeterCost, len(limits))
	for i, l := range limits {
		costs[i] = core.MeterCost{Meter: l.Meter, Cost: 85}
	}
	core.SortCosts(costs)
	var secrets []string
	for i := range users {
		_, _, secret := e.customer(fmt.Sprint(i), pl, core.KeyPatch{})
		secrets = append(secrets, secret)
	}
	e.ok(e.svc.RankAccounts(t.Context()))
	store.fails.Store(true)
	for _, secret := range secrets {
		e.use(secret, 1, costs...)
	}
	if err := e.svc.WriteEvents(t.Context()); !errors.Is(err, core.ErrUnavailable) {
		t.Errorf("got %v, want the error of the store", err)
	}
	store.fails.Store(false)
	write := func() int {
		t.Helper()
		for range 12 { // 10,000 readings, 1000 in each call
			e.ok(e.svc.WriteEvents(t.Context()))
		}
		return len(e.reported)
	}
	if n := write(); n >= users*len(limits) || n < 10_000 || e.svc.Stats().EventsDropped == 0 {
		t.Errorf("got %d events, want at least 10000 and not all", n)
	}
	e.ok(e.svc.RankAccounts(t.Context()))
	*e.now = e.now.Add(11 * time.Minute)
	e.ok(e.svc.RankAccounts(t.Context()))
	if n := write(); n != users*len(limits) || len(e.stored()) != n {
		t.Errorf("got %d events, want %d", n, users*len(limits))
	}
}

// Another threshold of the configuration causes events of the counters that are above it already.
func TestNewThresholds(t *testing.T) {
	e := newEvents(t, memstore.New())
	_, _, secret := e.customer("ann", e.plan(100), core.KeyPatch{})
	e.use(secret, 85)
	e.want(e.here(), "threshold 80 user_2 requests/month 85/100")
	e.ok(e.svc.RankAccounts(t.Context()))
	*e.now = e.now.Add(time.Second)
	tunables := service.DefaultTunables()
	tunables.EventThresholds = []int64{50, 80, 85, 90}
	e.svc.Tune(tunables)
	e.ok(e.svc.RankAccounts(t.Context()))
	e.want(e.here(), "threshold 50 user_2 requests/month 85/100", "threshold 85 user_2 requests/month 85/100")
	e.use(secret, 15)
	e.want(e.here(), "threshold 90 user_2 requests/month 100/100", "exhausted user_2 requests/month 100/100")
}

// A limit that is used up before its reset at the present pace causes one forecast a window, from half of it on. Limits of a minute, an hour and a lifetime are not
// forecast, and neither is a limit that lasts.
func TestForecastEvents(t *testing.T) {
	e := newEvents(t, memstore.New())
	limits := []core.Limit{{Meter: "tokens", Max: 100, Period: core.Minute}, {Meter: "tokens", Max: 110, Period: core.Hour}, {Meter: "tokens", Max: 1000, Period: core.Lifetime}}
	_, _, secret := e.customer("ann", e.plan(100, limits...), core.KeyPatch{})
	forecasts := func(want ...string) {
		t.Helper()
		e.ok(e.svc.WriteEvents(t.Context()))
		var got []string
		for _, ev := range e.reported {
			if ev.Type == core.EventForecast {
				got = append(got, e.describeEvent(ev)+" at "+e.dataOf(ev).ExhaustsAt)
			}
		}
		e.reported = nil
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%v: (-want +got)\n%s", *e.now, diff)
		}
	}
	e.use(secret, 49, tokens(60))
	forecasts()
	e.use(secret, 11, tokens(1))
	forecasts("forecast user_2 requests/month 60/100 at 2026-03-08T08:40:00Z")
	e.use(secret, 20)
	*e.now = e.now.Add(24 * time.Hour)
	e.use(secret, 1)
	e.ok(e.svc.RankAccounts(t.Context()))
	forecasts()
	*e.now = at("2026-04-29T12:00:00Z") // 50 of 100 in 7 days lasts until the reset
	e.use(secret, 50)
	forecasts()
	e.use(secret, 45)
	forecasts("forecast user_2 requests/month 95/100 at 2026-04-29T20:12:38Z")
	e.use(secret, 5)
	forecasts()
	*e.now = at("2026-05-01T12:00:00Z")
	e.use(secret, 60)
	forecasts("forecast user_2 requests/month 60/100 at 2026-05-01T20:00:00Z")
}

// A key that expires in 7 days causes one event for each end. A key that was made for less, has expired or is inactive causes none.
func TestKeyExpiringEvents(t *testing.T) {
	e := newEvents(t, memstore.New())
	pl := e.plan(100)
	key := func(name string, days int) *core.Key {
		_, k, _ := e.customer(name, pl, core.KeyPatch{ExpiresAt: core.Some(e.now.Add(time.Duration(days) * 24 * time.Hour))})
		return k
	}
	month, _, off := key("month", 30), key("short", 6), key("off", 30)
	_, err := e.svc.UpdateKey(t.Context(), e.id, off.ID, core.KeyPatch{Status: new(string(core.KeyInactive))})
	e.ok(err)
	start := *e.now
	expiring := func(day int, want ...string) {
		t.Helper()
		*e.now = start.Add(time.Duration(day)*24*time.Hour + time.Minute)
		for range 2 {
			e.ok(e.svc.RankAccounts(t.Context()))
			e.ok(e.svc.WriteEvents(t.Context()))
		}
		var got []string
		for _, ev := range e.reported {
			if ev.Type == core.EventKeyExpiring {
				got = append(got, ev.Subject+" "+string(ev.Data))
			}
		}
		e.reported = nil
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("day %d: (-want +got)\n%s", day, diff)
		}
	}
	data := func(end time.Time) string {
		return fmt.Sprintf(`%s {"user_id":%d,"key_id":%q,"plan_id":null,"expires_at":%q}`, month.ID, month.UserID, month.ID, end.Format(time.RFC3339))
	}
	expiring(2)
	expiring(22)
	expiring(24, data(start.Add(30*24*time.Hour)))
	expiring(26)
	end := start.Add(40 * 24 * time.Hour)
	_, err = e.svc.UpdateKey(t.Context(), e.id, month.ID, core.KeyPatch{ExpiresAt: core.Some(end)})
	e.ok(err)
	expiring(31)
	expiring(34, data(end))
	expiring(41)
}

// A settlement above its hold causes one event, however often it is repeated. A meter of which nothing was held is left out.
func TestHoldOverrunEvents(t *testing.T) {
	e := newEvents(t, memstore.New())
	_, k, secret := e.customer("ann", e.plan(1000, core.Limit{Meter: "tokens", Max: 100_000, Period: core.Month}, core.Limit{Meter: "pages", Max: 100_000, Period: core.Month}), core.KeyPatch{})
	settle := func(held, final int64) string {
		t.Helper()
		d, err := e.svc.Validate(t.Context(), e.id, service.Request{Secret: secret, Endpoint: "/", Method: "POST", Cost: 1, HoldFor: time.Minute, Costs: []core.MeterCost{tokens(held)}})
		e.ok(err)
		for range 2 {
			_, err = e.svc.Settle(t.Context(), e.id, d.HoldID, &service.Final{Costs: []core.MeterCost{{Meter: "pages", Cost: 3}, tokens(final)}})
			e.ok(err)
		}
		e.ok(e.svc.WriteEvents(t.Context()))
		return d.HoldID
	}
	settle(100, 100)
	id := settle(100, 112)
	var got []string
	for _, ev := range e.reported {
		got = append(got, ev.Subject+" "+string(ev.Data))
	}
	want := fmt.Sprintf(`user_2 {"user_id":%d,"key_id":%q,"hold_id":%q,"held":{"tokens":100},"settled":{"tokens":112},"overrun":{"tokens":12}}`, k.UserID, k.ID, id)
	if len(got) != 1 || got[0] != want {
		t.Errorf("got %q, want %s", got, want)
	}
}

// The event of a change of a key is stored with the change, for the webhooks that want it. A change that is not stored has no event.
func TestKeyEventsOfWebhooks(t *testing.T) {
	e := newEvents(t, memstore.New())
	e.ok(e.store.Update(t.Context(), e.id, func(tx core.Tx) error {
		for i, wants := range [][]string{{core.EventKeyCreated}, {core.EventKeyDisabled, core.EventKeyCreated}, {core.EventForecast}} {
			if err := tx.PutWebhook(&core.Webhook{AccountID: e.id, ID: fmt.Sprint("wh_", i), Events: wants}); err != nil {
				return err
			}
		}
		return nil
	}))
	pl := e.plan(100)
	u, k, _ := e.customer("ann", pl, core.KeyPatch{})
	stop := errors.New("stop")
	err := e.svc.Transact(t.Context(), e.id, nil, func(b *service.Transaction) error {
		_, _, err := b.CreateKey(core.KeyPatch{Name: new("not stored"), UserID: &u.ID})
		return errors.Join(err, stop)
	})
	if !errors.Is(err, stop) {
		t.Fatal(err)
	}
	_, err = e.svc.UpdateKey(t.Context(), e.id, k.ID, core.KeyPatch{Status: new(string(core.KeyInactive))})
	e.ok(err)
	var got []string
	for _, ev := range e.stored() {
		text := ev.Type + " " + ev.Subject + " " + string(ev.Data)
		for _, d := range ev.Deliveries {
			text += " " + d.Webhook
		}
		got = append(got, text)
	}
	want := []string{
		fmt.Sprintf(`limitkeeper.key_created %s {"user_id":2,"key_id":%q,"plan_id":null,"expires_at":null} wh_0 wh_1`, k.ID, k.ID),
		fmt.Sprintf(`limitkeeper.key_disabled %s {"user_id":2,"key_id":%q,"how":"inactive"} wh_1`, k.ID, k.ID),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

package archive

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
	"github.com/limitkeeper/limitkeeper/storage/storetest"
)

// TestInvoice: after a month of traffic over three meters, with holds, adjustments, overage, a month that begins on the 17th, a key that moves, and deleted keys
// and users, each report equals one that this test adds up from its own notes, row by row. So does the report of the reopened store, and that of the
// store that a backup restores.
func TestInvoice(t *testing.T) {
	for name, open := range map[string]func(*testing.T) func() storetest.Opened{
		"memory": func(*testing.T) func() storetest.Opened { return inMemory },
		"disk":   func(t *testing.T) func() storetest.Opened { return func() storetest.Opened { return onDisk(t) } },
		"Redis Cluster": func(t *testing.T) func() storetest.Opened {
			addresses, prefix := redistest.StartCluster(t).Addrs(), 0
			return func() storetest.Opened {
				prefix++
				open := func(testing.TB) core.Store { return openRedis(t, prefix, addresses...) }
				return storetest.Opened{Store: open(t), Reopen: open}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opened := open(t)
			source := opened()
			m := newMonth(t, source.Store)
			m.run()
			m.check("after the month", source.Store)
			if err := source.Store.Close(); err != nil {
				t.Fatal(err)
			}
			s := source.Reopen(t).(core.Importer)
			m.check("after reopening", s)
			restored := opened()
			o := small()
			o.now = func() time.Time { return m.now }
			mustImport(t, s, restored.Store.(core.Importer), o)
			m.check("after the restore", restored.Store)
		})
	}
}

// note is a change by one call, recorded by the test.
type note struct {
	user     string // its name
	key      string // its name; "" for none
	counter  string // the deciding counter: the name of a user or key
	meter    string
	date     time.Time // midnight
	hour     time.Time // its beginning
	allowed  int64
	denied   int64
	adjusted int64
	requests [2]int64 // of the meter requests: allowed and denied
}

// invoiceKey is a key of the test.
type invoiceKey struct {
	id, name, secret string
	user             string // the name of its user
	own              string // the name of its own plan; "" for none
	deleted          bool
}

// invoiceHold is an open hold.
type invoiceHold struct {
	id    string
	key   *invoiceKey
	at    time.Time
	costs map[string]int64
}

// month makes a month of traffic, and keeps notes of it.
type month struct {
	t       *testing.T
	s       *service.Service
	r       *rand.Rand
	now     time.Time
	account string
	users   map[string]*core.User

	userNames map[int64]string // also of deleted users
	plans     map[string]*core.Plan
	keys      []*invoiceKey
	holds     []*invoiceHold
	notes     []note
	refused   int
	step      func() // called after each change, if it is not nil
}

var (
	monthFrom = time.Date(2026, time.October, 1, 0, 0, 0, 0, time.UTC)
	monthTo   = time.Date(2026, time.November, 1, 0, 0, 0, 0, time.UTC)
)

// exceeds are the limits with overage: of the plan Team, of the user bert, and of the plan Own.
var exceeds = map[string]map[string]int64{
	"Team": {core.MeterRequests: 150, "tokens": 4000},
	"bert": {core.MeterRequests: 60, "tokens": 4000},
	"Own":  {core.MeterRequests: 40},
}

func newMonth(t *testing.T, store core.Store) *month {
	m := &month{t: t, r: rand.New(rand.NewPCG(38, 5)), users: map[string]*core.User{}, userNames: map[int64]string{}, plans: map[string]*core.Plan{}}
	m.now = monthFrom.AddDate(0, 0, -18)
	m.s = service.New(store, service.Config{Clock: func() time.Time { return m.now }})
	a, _, _, err := m.s.CreateAccount(t.Context(), "invoices")
	m.must(err)
	m.account = a.ID
	m.plan("Team", 150, []core.Limit{{Meter: "tokens", Max: 4000, Period: core.Month, OnExceed: core.AllowExceed}, {Meter: "spend", Max: 900, Period: core.Month}})
	m.plan("Own", 40, []core.Limit{{Meter: "tokens", Max: 30_000, Period: core.Lifetime}, {Meter: "spend", Max: 60, Period: core.Day}})
	for _, u := range []struct{ name, external, start string }{{"anna", "cus_1", ""}, {"bert", "", "2026-09-17"}, {"cara", "cus_3", ""}, {"dora, gone", "", ""}, {"emil", "", ""}} {
		p := core.UserPatch{Name: &u.name, PlanID: core.Some(m.plans["Team"].ID)}
		if u.external != "" {
			p.ExternalID = core.Some(u.external)
		}
		if u.start != "" {
			start, err := time.Parse(time.DateOnly, u.start)
			m.must(err)
			p.CustomStart = core.Some(start)
			p.Overrides = core.Some([]core.Override{{Meter: core.MeterRequests, Max: 60, Period: core.Month}})
		}
		m.users[u.name], err = m.s.CreateUser(t.Context(), m.account, p)
		m.must(err)
		m.userNames[m.users[u.name].ID] = u.name
		for i, own := range []string{"", "", "Own"} {
			k := &invoiceKey{name: fmt.Sprint(u.name, " ", i), user: u.name, own: own}
			p := core.KeyPatch{Name: &k.name, UserID: &m.users[u.name].ID}
			if own != "" {
				p.PlanID = core.Some(m.plans[own].ID)
			}
			made, secret, err := m.s.CreateKey(t.Context(), m.account, p)
			m.must(err)
			k.id, k.secret = made.ID, secret
			m.keys = append(m.keys, k)
		}
	}
	return m
}

func (m *month) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatalf("%v: %v", m.now, err)
	}
}

func (m *month) plan(name string, limit int64, limits []core.Limit) {
	p, err := m.s.CreatePlan(m.t.Context(), m.account, core.PlanPatch{Name: &name, Limit: core.Some(limit), Period: new("month"), OnExceed: new("allow"), Limits: core.Some(limits)})
	m.must(err)
	m.plans[name] = p
}

// run makes traffic until some days after the month.
func (m *month) run() {
	began := m.now
	for m.now.Before(monthTo.AddDate(0, 0, 3)) {
		before := m.now
		m.now = m.now.Add(time.Duration(1+m.r.IntN(40*60)) * time.Second)
		k := m.keys[m.r.IntN(len(m.keys))]
		switch n := m.r.IntN(20); {
		case k.deleted:
		case n < 14:
			m.request(k, n < 4)
		case n < 17:
			m.end()
		case n < 19:
			m.adjust(k)
		default:
			m.external()
		}
		on := func(day int) bool {
			at := monthFrom.AddDate(0, 0, day).Add(7 * time.Hour)
			return before.Before(at) && !m.now.Before(at)
		}
		switch {
		case on(9): // the first key of anna goes to cara
			m.keys[0].user = "cara"
			_, err := m.s.UpdateKey(m.t.Context(), m.account, m.keys[0].id, core.KeyPatch{UserID: &m.users["cara"].ID})
			m.must(err)
			m.forgetHolds(m.keys[0])
		case on(12):
			m.deleteKey(m.keys[7]) // of cara
		case on(19):
			m.deleteUser("dora, gone")
		}
		if m.step != nil {
			m.step()
		}
	}
	m.deleteUser("emil")
	if len(m.notes) < 2000 || m.refused < 20 {
		m.t.Errorf("the traffic since %v has %d changes and %d refusals: too few for a test", began, len(m.notes), m.refused)
	}
}

func (m *month) counterOf(k *invoiceKey) string {
	if k.own != "" {
		return k.name
	}
	return k.user
}

// note adds a note about a change on one meter.
func (m *month) note(user, key, counter, meter string, at time.Time, n note) {
	n.user, n.key, n.counter, n.meter, n.date, n.hour = user, key, counter, meter, at.Truncate(24*time.Hour), at.Truncate(time.Hour)
	m.notes = append(m.notes, n)
}

// count notes a request with its costs.
func (m *month) count(user, key, counter string, allowed bool, costs map[string]int64) {
	for meter, cost := range costs {
		n := note{allowed: cost}
		if meter == core.MeterRequests {
			n.requests[0] = 1
		}
		if !allowed {
			n.allowed, n.denied = 0, cost
			n.requests[0], n.requests[1] = 0, n.requests[0]
		}
		m.note(user, key, counter, meter, m.now, n)
	}
	if !allowed {
		m.refused++
	}
}

// draw draws the costs of a request.
func (m *month) draw() (map[string]int64, service.Request) {
	costs := map[string]int64{core.MeterRequests: []int64{0, 1, 1, 1, 2, 5}[m.r.IntN(6)]}
	r := service.Request{Endpoint: "/v1/chat", Method: "POST", Cost: costs[core.MeterRequests]}
	for _, meter := range []string{"spend", "tokens"} { // sorted
		if n := int64(m.r.IntN(60)); n >= 20 {
			if meter == "spend" {
				n /= 5
			}
			costs[meter], r.Costs = n, append(r.Costs, core.MeterCost{Meter: meter, Cost: n})
		}
	}
	if len(r.Costs) == 0 && r.Cost == 0 { // the request would count nothing
		costs[core.MeterRequests], r.Cost = 1, 1
	}
	return costs, r
}

// request makes a request with a key, perhaps with a hold.
func (m *month) request(k *invoiceKey, holds bool) {
	costs, r := m.draw()
	r.Secret = k.secret
	if holds {
		r.HoldFor = 20 * time.Hour
	}
	d, err := m.s.Validate(m.t.Context(), m.account, r)
	m.must(err)
	m.count(k.user, k.name, m.counterOf(k), d.Outcome == service.Allowed, costs)
	if d.HoldID != "" {
		m.holds = append(m.holds, &invoiceHold{d.HoldID, k, m.now, costs})
	}
}

// external makes a request of anna without a key.
func (m *month) external() {
	costs, r := m.draw()
	r.External = "cus_1"
	d, err := m.s.Validate(m.t.Context(), m.account, r)
	m.must(err)
	m.count("anna", "", "anna", d.Outcome == service.Allowed, costs)
}

// end settles or releases the oldest hold, also on a later day and in a later month. A hold that has expired stays as it is.
func (m *month) end() {
	if len(m.holds) == 0 {
		return
	}
	h := m.holds[0]
	m.holds = m.holds[1:]
	release := m.r.IntN(3) == 0
	final := map[string]int64{core.MeterRequests: int64(m.r.IntN(4)), "tokens": int64(m.r.IntN(200))}
	var err error
	if release {
		final = map[string]int64{}
		_, err = m.s.Release(m.t.Context(), m.account, h.id, "")
	} else {
		f := &service.Final{Requests: new(final[core.MeterRequests]), Costs: []core.MeterCost{{Meter: "tokens", Cost: final["tokens"]}}}
		if spent, held := h.costs["spend"]; held { // a meter that is not named stays as held
			final["spend"] = spent
		}
		_, err = m.s.Settle(m.t.Context(), m.account, h.id, f)
	}
	if errors.Is(err, core.ErrHoldExpired) {
		return
	}
	m.must(err)
	for _, meter := range []string{core.MeterRequests, "spend", "tokens"} {
		n := note{allowed: final[meter] - h.costs[meter]}
		if release && meter == core.MeterRequests {
			n.requests[0] = -1
		}
		m.note(h.key.user, h.key.name, m.counterOf(h.key), meter, h.at, n)
	}
}

// adjust adjusts the counter that decides for a key. Nothing is given back that a hold may still give back: the usage would not fall below 0.
func (m *month) adjust(k *invoiceKey) {
	meter, delta := []string{core.MeterRequests, "spend", "tokens"}[m.r.IntN(3)], int64(m.r.IntN(30)-20)
	counter := m.counterOf(k)
	used := m.used(counter, meter, m.now)
	for _, h := range m.holds {
		used -= h.costs[meter]
	}
	a := core.Adjustment{Meter: meter, Value: delta, Reason: "goodwill"}
	switch {
	case delta == 0 || used+delta < 0:
		return
	case m.r.IntN(4) == 0:
		used = m.used(counter, meter, m.now)
		a.Set, a.Period, a.Value = true, core.Month, used+delta
	}
	_, _, err := m.s.AdjustKey(m.t.Context(), m.account, k.id, service.AdjustmentCall{Adjustment: a})
	m.must(err)
	key := ""
	if k.own != "" {
		key = k.name
	}
	m.note(k.user, key, counter, meter, m.now, note{adjusted: delta})
}

// forgetHolds forgets the open holds of a key. Their costs stay counted.
func (m *month) forgetHolds(k *invoiceKey) {
	m.holds = slices.DeleteFunc(m.holds, func(h *invoiceHold) bool { return h.key == k })
}

func (m *month) deleteKey(k *invoiceKey) {
	k.deleted = true
	m.forgetHolds(k)
	m.must(m.s.DeleteKey(m.t.Context(), m.account, k.id))
}

func (m *month) deleteUser(name string) {
	for _, k := range m.keys {
		if k.user == name {
			k.deleted = true
			m.forgetHolds(k)
		}
	}
	m.must(m.s.DeleteUser(m.t.Context(), m.account, m.users[name].ID))
	delete(m.users, name)
}

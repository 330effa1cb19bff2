package storetest

import (
	"fmt"
	"math"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/limitkeeper/limitkeeper/core"
)

// check compares the whole of one account, after each step another account.
func (m *machine) check(t *rapid.T) {
	m.checks++
	page := core.Page{Number: 1, Size: 100}
	account := m.accounts[m.checks%len(m.accounts)]
	for _, f := range []core.UserFilter{{}, {Anchored: true}} {
		m.both(t, "Users", func(s core.Store) (any, error) { return listed(s.Users(m.e.ctx, account, f, page)) })
	}
	m.both(t, "Plans", func(s core.Store) (any, error) { return listed(s.Plans(m.e.ctx, account, page)) })
	m.both(t, "Keys", func(s core.Store) (any, error) {
		return listed(s.Keys(m.e.ctx, account, core.KeyFilter{}, page))
	})
	m.both(t, "Prices", func(s core.Store) (any, error) { return s.Prices(m.e.ctx, account) })
	m.both(t, "Webhooks", func(s core.Store) (any, error) { return listed(s.Webhooks(m.e.ctx, account, page)) })
	m.both(t, "Events", func(s core.Store) (any, error) { return listed(s.Events(m.e.ctx, account, core.EventFilter{}, 0, 100)) })
	m.both(t, "Counters", func(s core.Store) (any, error) {
		cs, err := s.Counters(m.e.ctx, m.counters())
		for i, c := range cs { // without the unexported members
			cs[i] = core.Counter{}
			cs[i].Set(&c)
		}
		return cs, err
	})
	m.bothAudit(t, account, 0, 200)
	m.checkDays(t, account)
	m.checkLaw(t, account)
	plans, _, _ := m.model.Plans(m.e.ctx, account, page)
	if n := len(plans); n > 0 {
		m.bothPlanUsed(t, plans[m.checks/2%n], core.Month, m.now)
	}
}

// checkDays compares the days of the account, then of a user or a key: the latest days, or
// one of them.
func (m *machine) checkDays(t *rapid.T, account string) {
	last := core.DateOf(m.latest)
	first := last - 4
	if m.checks%4 > 1 {
		last -= core.Date(m.checks % 8 / 4)
		first = last
	}
	of := []core.DaysFilter{{Account: account}, {Account: account, UserID: int64(1 + m.checks/2%2)}}
	if n := len(m.keys); n > 0 {
		k := m.keys[max(0, n-1-m.checks%5)]
		of = append(of, core.DaysFilter{Account: k.account, KeyID: k.id})
	}
	hour := core.HourOf(m.latest)
	for _, f := range of {
		m.bothDays(t, f, first, last)
		m.bothDays(t, f, hour-core.Date(m.checks%3*20), hour)
	}
}

func (m *machine) bothDays(t *rapid.T, of core.DaysFilter, first, last core.Date) {
	m.both(t, fmt.Sprintf("Days of %+v", of), func(s core.Store) (any, error) { return s.Days(m.e.ctx, of, first, last) })
}

// compareReads compares lists under random filters and pages, single resources and histories.
func (m *machine) compareReads(t *rapid.T) {
	account := m.anyAccount(t)
	page := core.Page{Number: rapid.SampledFrom([]int{1, 1, 2, 2, 3, 4, 1 << 40, math.MaxInt/100 + 1, math.MaxInt}).Draw(t, "page"),
		Size: rapid.SampledFrom([]int{1, 2, 3, 100}).Draw(t, "size")}
	m.lookAccounts(t, account, page)
	of := rapid.SampledFrom(m.counters()).Draw(t, "days of")
	last := core.DateOf(m.latest)
	for _, f := range []core.DaysFilter{{Account: account}, {Account: account, PlanID: m.planID(t, account)},
		{Account: of.Account, KeyID: of.KeyID, UserID: of.UserID}} {
		m.bothDays(t, f, last-core.DaysKept+1, last)
		m.bothDays(t, f, core.HourOf(m.latest)-core.HoursKept+1, core.HourOf(m.latest))
	}
	m.comparePlanUsed(t)
	m.lookWebhooks(t, account, page)
	m.lookAudit(t, account)
	for range 3 {
		m.lookUsers(t, account, page)
		m.lookPlans(t, account, page)
		m.lookKeys(t, account, page)
		m.lookHistory(t, page)
	}
}

// comparePlanUsed compares the usage of each plan, mostly in the current window.
func (m *machine) comparePlanUsed(t *rapid.T) {
	period := rapid.SampledFrom(core.PlanPeriods()).Draw(t, "period")
	at := m.now.Add(rapid.SampledFrom([]time.Duration{0, 0, 0, -24 * time.Hour, 24 * time.Hour}).Draw(t, "at"))
	for _, account := range append(m.accounts, "acct_missing") {
		plans, _, _ := m.model.Plans(m.e.ctx, account, core.Page{Number: 1, Size: 4})
		for _, pl := range append(plans, newPlan(account, "plan_missing")) {
			m.bothPlanUsed(t, pl, period, at)
		}
	}
}

func (m *machine) bothPlanUsed(t *rapid.T, pl *core.Plan, period core.Period, at time.Time) {
	m.both(t, "PlanUsed", func(s core.Store) (any, error) { return s.PlanUsed(m.e.ctx, pl.AccountID, pl.ID, period, at) })
}

func (m *machine) lookHistory(t *rapid.T, page core.Page) {
	of, since := rapid.SampledFrom(m.counters()).Draw(t, "counter"), m.since(t)
	m.both(t, "History", func(s core.Store) (any, error) { return listed(s.History(m.e.ctx, of, since, page)) })
	m.checkIndex(t, of, since)
}

// since draws a time from which a history is read. After a step back of the clock, the time is
// before or after all entries.
func (m *machine) since(t *rapid.T) time.Time {
	times := []time.Time{{}, {}, noon.AddDate(-10, 0, 0), m.latest}
	if !m.steppedBack {
		times = append(times, m.latest.Add(-time.Nanosecond), m.latest.Add(-time.Hour), m.latest.AddDate(0, -2, 0).In(abroad))
	}
	return rapid.SampledFrom(times).Draw(t, "since")
}

// checkIndex compares a [core.HistoryIndex] with the history.
func (m *machine) checkIndex(t *rapid.T, of core.CounterID, since time.Time) {
	index, ok := m.e.Store.(core.HistoryIndex)
	if !ok {
		return
	}
	list, _, _ := m.model.History(m.e.ctx, of, since, core.Page{Number: 1, Size: 1000})
	newest, err := index.NewestEntries(m.e.ctx, []core.CounterID{{Account: of.Account, UserID: 1 << 40}, of})
	if err != nil || len(newest) != 2 || !newest[0].IsZero() {
		t.Fatalf("NewestEntries: got %v, %v, want two times, the first zero", newest, err)
	}
	late := slices.ContainsFunc(list, func(x core.Entry) bool { return x.Late > 0 })
	for _, x := range list[:min(20, len(list))] {
		n, err := index.CountFrom(m.e.ctx, of, since, x.At)
		sure := slices.IndexFunc(append(list, core.Entry{}), func(y core.Entry) bool { return y.At.Before(x.At) })
		if err != nil || n < 0 || n > sure || n < sure && !late && since.IsZero() {
			t.Fatalf("CountFrom: got %d, %v from %v on, %d entries have such a time in the history %+v", n, err, x.At, sure, list)
		}
		if newest[1].Before(x.At) {
			t.Fatalf("NewestEntries: got %v, and the history of %+v has an entry of %v", newest, of, x.At)
		}
	}
}

func (m *machine) lookPlans(t *rapid.T, account string, page core.Page) {
	m.both(t, "Plans", func(s core.Store) (any, error) { return listed(s.Plans(m.e.ctx, account, page)) })
	plan := m.planID(t, account)
	m.both(t, "Plan", func(s core.Store) (any, error) { return s.Plan(m.e.ctx, account, plan) })
	m.both(t, "Prices", func(s core.Store) (any, error) { return s.Prices(m.e.ctx, account) })
}

// userFilter draws a filter of users.
func (m *machine) userFilter(t *rapid.T, account string) (f core.UserFilter) {
	switch rapid.IntRange(0, 5).Draw(t, "filter") {
	case 1:
		f.Email = rapid.SampledFrom(texts).Draw(t, "email")
	case 2:
		f.ExternalID = rapid.SampledFrom(texts).Draw(t, "external id")
	case 3:
		f.PlanID = m.planID(t, account)
	case 4:
		f.OnPlan = m.planID(t, account)
	case 5:
		f.Anchored = true
	}
	return f
}

func (m *machine) lookUsers(t *rapid.T, account string, page core.Page) {
	f := m.userFilter(t, account)
	m.both(t, "Users", func(s core.Store) (any, error) { return listed(s.Users(m.e.ctx, account, f, page)) })
	id := rapid.Int64Range(1, 6).Draw(t, "user")
	m.both(t, "User", func(s core.Store) (any, error) { return s.User(m.e.ctx, account, id) })
}

// keyFilter draws a filter of keys.
func (m *machine) keyFilter(t *rapid.T, account string) core.KeyFilter {
	if tail := rapid.SampledFrom([]string{"", "", "", "_1", "_2", "zz"}).Draw(t, "hint"); tail != "" {
		return core.KeyFilter{HintTail: tail}
	}
	f := core.KeyFilter{
		UserID: rapid.Int64Range(0, 4).Draw(t, "user"),
		Status: rapid.SampledFrom([]core.KeyStatus{"", core.KeyActive, core.KeyInactive}).Draw(t, "status"),
	}
	if rapid.Bool().Draw(t, "by plan") {
		plan := m.planID(t, account)
		if f.PlanID = &plan; f.UserID == 0 && f.Status != "" {
			f.PlanID, f.UnderPlan = nil, plan
		}
	}
	return f
}

func (m *machine) lookKeys(t *rapid.T, account string, page core.Page) {
	f := m.keyFilter(t, account)
	m.both(t, "Keys", func(s core.Store) (any, error) { return listed(s.Keys(m.e.ctx, account, f, page)) })
	d := rapid.SampledFrom(m.digests).Draw(t, "digest")
	m.both(t, "KeyByDigest", func(s core.Store) (any, error) { return s.KeyByDigest(m.e.ctx, d) })
	if len(m.keys) > 0 {
		k := rapid.SampledFrom(m.keys).Draw(t, "key")
		m.both(t, "Key", func(s core.Store) (any, error) { return s.Key(m.e.ctx, k.account, k.id) })
	}
}

// found returns a read whose answer is a resource, or the error.
func found(read step) step {
	return func(tx core.Tx) (any, error) {
		v, err := read(tx)
		if err != nil {
			v = fault(err)
		}
		return v, nil
	}
}

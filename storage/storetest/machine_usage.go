package storetest

import (
	"time"

	"pgregory.net/rapid"

	"github.com/limitkeeper/limitkeeper/core"
)

// aKey draws a key of an account, or skips the action.
func (m *machine) aKey(t *rapid.T) *core.Key {
	account := m.account(t)
	ks, _, _ := m.model.Keys(m.e.ctx, account, core.KeyFilter{}, core.Page{Number: 1, Size: 1000})
	if len(ks) == 0 {
		t.SkipNow()
	}
	return rapid.SampledFrom(ks).Draw(t, "key")
}

// requestOf returns a request with a key, with the anchors of its user.
func (m *machine) requestOf(k *core.Key) core.Consumption {
	m.serial++
	return m.anchored(endpoint(request(k, m.now), "/%d", m.serial))
}

// anchored returns the request with the anchors of its user.
func (m *machine) anchored(c core.Consumption) core.Consumption {
	if u, err := m.model.User(m.e.ctx, c.Account, c.UserID); err == nil {
		c.Anchors = u.Anchors
	}
	return c
}

// consume makes a few requests with one key.
func (m *machine) consume(t *rapid.T) {
	k := m.aKey(t)
	for range rapid.IntRange(1, 3).Draw(t, "times") {
		c := cost(m.requestOf(k), rapid.SampledFrom([]int64{0, 1, 1, 1, 2, 5}).Draw(t, "cost"))
		c = under(c, rapid.SampledFrom([]string{"plan_1", "plan_2"}).Draw(t, "plan"),
			rapid.SampledFrom(core.PlanPeriods()).Draw(t, "period"), rapid.Int64Range(1, 12).Draw(t, "limit"))
		m.request(t, m.called(t, m.limited(t, c)))
	}
}

// limited gives some requests a rate, other meters and limits.
func (m *machine) limited(t *rapid.T, c core.Consumption) core.Consumption {
	if rapid.IntRange(0, 3).Draw(t, "rated") == 0 {
		c = atRate(c, 1, rapid.SampledFrom([]core.RatePer{core.PerSecond, core.PerMinute}).Draw(t, "per"), rapid.Int64Range(1, 3).Draw(t, "burst"))
	}
	if rapid.IntRange(0, 2).Draw(t, "limited") > 0 {
		return c
	}
	c = tokens(c, rapid.Int64Range(0, 3).Draw(t, "tokens"))
	for range rapid.IntRange(0, 2).Draw(t, "limits") {
		l := core.Limit{Meter: rapid.SampledFrom([]string{core.MeterRequests, "tokens"}).Draw(t, "meter"),
			Max: rapid.Int64Range(1, 15).Draw(t, "max"), Period: rapid.SampledFrom(core.Periods()).Draw(t, "of")}
		c.Further = append(c.Further, l)
	}
	if rapid.IntRange(0, 3).Draw(t, "unlimited") == 0 {
		c.Limit = core.Unlimited
	}
	return c
}

// special makes an adjustment or a refused request, or updates an account or its access, not too often.
func (m *machine) special(t *rapid.T) {
	switch rapid.IntRange(0, 7).Draw(t, "special") {
	case 0:
		m.adjust(t)
	case 1:
		m.refused(t)
	case 2:
		m.accountUpdate(t)
	case 3:
		m.accessUpdate(t)
	default:
		t.SkipNow()
	}
}

// refused makes a request with a key that is disabled or has expired.
func (m *machine) refused(t *rapid.T) {
	c := m.requestOf(m.aKey(t))
	c.Refused = rapid.SampledFrom([]core.Reason{core.ReasonDisabled, core.ReasonExpired}).Draw(t, "reason")
	m.request(t, c)
}

// adjust adjusts the counter of a key or of its user.
func (m *machine) adjust(t *rapid.T) {
	c := adjusted(m.requestOf(m.aKey(t)), rapid.SampledFrom([]string{core.MeterRequests, "tokens"}).Draw(t, "meter"), rapid.Int64Range(-5, 5).Draw(t, "by"))
	if rapid.Bool().Draw(t, "set") {
		c.Adjustment.Set, c.Adjustment.Period = true, rapid.SampledFrom(core.Periods()).Draw(t, "period")
		c.Adjustment.Value = max(0, c.Adjustment.Value)
	}
	if rapid.Bool().Draw(t, "user") {
		c = ofUser(c)
	} else if c = m.called(t, c); c.RequestID != "" {
		c.RequestID = "adjust " + c.RequestID
		c = m.unlessUnsure(c)
	}
	m.request(t, c)
}

// called gives some requests an id, often an earlier one of the key.
func (m *machine) called(t *rapid.T, c core.Consumption) core.Consumption {
	c.RequestID = rapid.SampledFrom([]string{"", "", "id 1", "id 2", "ID 1", "id 3"}).Draw(t, "request id")
	return m.unlessUnsure(c)
}

// unlessUnsure returns the request. It removes the id if a store may or may not remember it: after
// a step back of the clock, or if the key was put again.
func (m *machine) unlessUnsure(c core.Consumption) core.Consumption {
	first, known := m.counted[c.Account+c.KeyID+c.RequestID]
	later := c
	later.Entry.At = m.latest
	if known && c.Repeats(first) && !later.Repeats(first) || m.renewed[c.Account+c.KeyID] {
		c.RequestID = ""
	}
	return c
}

// again repeats a request some time after it was counted, sometimes after its key was deleted.
func (m *machine) again(t *rapid.T) {
	if len(m.named) == 0 {
		t.SkipNow()
	}
	latest := m.named[max(0, len(m.named)-5):]
	c := rapid.SampledFrom(latest).Draw(t, "request")
	after := rapid.SampledFrom([]time.Duration{-2 * time.Hour, 0, time.Hour, core.RequestIDRetention - time.Nanosecond,
		core.RequestIDRetention}).Draw(t, "after")
	if at := c.Entry.At.Add(after); !at.Before(m.now.Add(-3 * time.Hour)) {
		m.setClock(at)
	}
	if k, err := m.model.Key(m.e.ctx, c.Account, c.KeyID); err == nil {
		c.KeySeq, c.UserID, c.Entry.UserID, c.Shared = k.Seq, k.UserID, k.UserID, k.PlanID == ""
	}
	c.Entry.At = m.now
	m.request(t, m.unlessUnsure(m.anchored(endpoint(c, "/again"))))
}

// flood makes so many requests in one second that some denials are omitted. After the first denial
// all are denied, so flood waits for their entries only at the end.
func (m *machine) flood(t *rapid.T) {
	c := m.requestOf(m.aKey(t))
	c.Limit = rapid.Int64Range(1, 4).Draw(t, "limit")
	for range rapid.IntRange(5, 20).Draw(t, "times") {
		c = endpoint(c, "/%d", m.serial)
		m.serial++
		m.consumeBoth(t, c)
	}
	m.awaitDenials(t, c)
}

// request makes a request. After a denial it waits for the entry, so that the order of the history
// is known.
func (m *machine) request(t *rapid.T, c core.Consumption) {
	if !m.consumeBoth(t, c) {
		m.awaitDenials(t, c)
	}
}

// consumeBoth makes a request to both stores and reports whether it is allowed.
func (m *machine) consumeBoth(t *rapid.T, c core.Consumption) bool {
	answer, err := m.both(t, "Consume", func(s core.Store) (any, error) {
		given := c
		return s.Consume(m.e.ctx, &given)
	})
	v := answer.(core.ConsumeResult)
	if err != nil {
		return false
	}
	if v.Allowed && v.FirstTerms == nil && (c.Counts() || c.Adjustment != nil) && c.RequestID != "" {
		m.counted[c.Account+c.KeyID+c.RequestID] = c.Entry.At
		m.named = append(m.named, c)
	}
	return v.Allowed
}

// awaitDenials waits until the requests with a key are in its history and in that of its user.
func (m *machine) awaitDenials(t *rapid.T, c core.Consumption) {
	m.await(t, core.CounterID{Account: c.Account, KeyID: c.KeyID})
	m.await(t, core.CounterID{Account: c.Account, UserID: c.UserID})
}

// await waits until a history has as many entries as in the model.
func (m *machine) await(t *rapid.T, of core.CounterID) {
	total := func(s core.Store) int {
		_, n, err := s.History(m.e.ctx, of, time.Time{}, core.Page{Number: 1, Size: 1})
		if err != nil {
			t.Fatalf("History: %v", err)
		}
		return n
	}
	want := total(m.model)
	if !within(waitTimeout, func() bool { return total(m.e.Store) >= want }) {
		t.Fatalf("history of %+v: got %d entries after %v, want %d", of, total(m.e.Store), waitTimeout, want)
	}
}

// compareReads compares lists under random filters and pages, single resources and histories.
func (m *machine) compareReads(t *rapid.T) {
	account := rapid.SampledFrom(m.anyAccount()).Draw(t, "account")
	page := core.Page{Number: rapid.IntRange(1, 4).Draw(t, "page"), Size: rapid.SampledFrom([]int{1, 2, 3, 100}).Draw(t, "size")}
	m.both(t, "Accounts", func(s core.Store) (any, error) { return listed(s.Accounts(m.e.ctx, page)) })
	m.both(t, "AccountByName", func(s core.Store) (any, error) { return s.AccountByName(m.e.ctx, "name of "+account) })
	m.both(t, "Account", func(s core.Store) (any, error) { return s.Account(m.e.ctx, account) })
	of := rapid.SampledFrom(m.counters()).Draw(t, "days of")
	last := core.DateOf(m.latest)
	m.bothDays(t, core.DaysFilter{Account: of.Account, KeyID: of.KeyID, UserID: of.UserID}, last-core.DaysKept+1, last)
	m.bothDays(t, core.DaysFilter{Account: account, PlanID: m.planID(t, account)}, last-core.DaysKept+1, last)
	m.comparePlanTotals(t)
	for range 3 {
		m.lookUsers(t, account, page)
		m.lookPlans(t, account, page)
		m.lookKeys(t, account, page)
		m.lookHistory(t, page)
	}
}

// comparePlanTotals compares the totals of each plan, mostly in the current window.
func (m *machine) comparePlanTotals(t *rapid.T) {
	period, n := rapid.SampledFrom(core.PlanPeriods()).Draw(t, "period"), rapid.SampledFrom([]int{100, 100, 2, 1, 0}).Draw(t, "most")
	at := m.now.Add(rapid.SampledFrom([]time.Duration{0, 0, 0, -24 * time.Hour, 24 * time.Hour}).Draw(t, "at"))
	for _, account := range m.accounts {
		plans, _, _ := m.model.Plans(m.e.ctx, account, core.Page{Number: 1, Size: 4})
		for _, pl := range append(plans, newPlan(account, "plan_missing")) {
			m.both(t, "PlanTotals", func(s core.Store) (any, error) { return s.PlanTotals(m.e.ctx, account, pl.ID, period, at, n) })
		}
	}
}

func (m *machine) lookHistory(t *rapid.T, page core.Page) {
	of, since := rapid.SampledFrom(m.counters()).Draw(t, "counter"), m.since(t)
	m.both(t, "History", func(s core.Store) (any, error) { return listed(s.History(m.e.ctx, of, since, page)) })
}

func (m *machine) lookPlans(t *rapid.T, account string, page core.Page) {
	m.both(t, "Plans", func(s core.Store) (any, error) { return listed(s.Plans(m.e.ctx, account, page)) })
	plan := m.planID(t, account)
	m.both(t, "Plan", func(s core.Store) (any, error) { return s.Plan(m.e.ctx, account, plan) })
}

// since draws a time from which a history is read. After a step back of the clock, the time is
// before or after all entries.
func (m *machine) since(t *rapid.T) time.Time {
	times := []time.Time{{}, {}, noon.AddDate(-10, 0, 0), m.latest}
	if !m.steppedBack {
		times = append(times, m.latest.Add(-time.Nanosecond), m.latest.Add(-time.Hour), m.latest.AddDate(0, -2, 0))
	}
	return rapid.SampledFrom(times).Draw(t, "since")
}

func (m *machine) lookUsers(t *rapid.T, account string, page core.Page) {
	var f core.UserFilter
	switch rapid.IntRange(0, 4).Draw(t, "filter") {
	case 1:
		f.Email = rapid.SampledFrom(emails).Draw(t, "email")
	case 2:
		f.ExternalID = rapid.SampledFrom(externalIDs).Draw(t, "external id")
	case 3:
		f.PlanID = m.planID(t, account)
	case 4:
		f.OnPlan = m.planID(t, account)
	}
	m.both(t, "Users", func(s core.Store) (any, error) { return listed(s.Users(m.e.ctx, account, f, page)) })
	id := rapid.Int64Range(1, 6).Draw(t, "user")
	m.both(t, "User", func(s core.Store) (any, error) { return s.User(m.e.ctx, account, id) })
}

func (m *machine) lookKeys(t *rapid.T, account string, page core.Page) {
	f := core.KeyFilter{
		UserID: rapid.Int64Range(0, 4).Draw(t, "user"),
		Status: rapid.SampledFrom([]core.KeyStatus{"", core.KeyActive, core.KeyInactive}).Draw(t, "status"),
	}
	if rapid.Bool().Draw(t, "by plan") {
		f.PlanID = new(m.planID(t, account))
	}
	m.both(t, "Keys", func(s core.Store) (any, error) { return listed(s.Keys(m.e.ctx, account, f, page)) })
	if len(m.digests) > 0 {
		d := rapid.SampledFrom(m.digests).Draw(t, "digest")
		m.both(t, "KeyByDigest", func(s core.Store) (any, error) { return s.KeyByDigest(m.e.ctx, d) })
		k := rapid.SampledFrom(m.keys).Draw(t, "key")
		m.both(t, "Key", func(s core.Store) (any, error) { return s.Key(m.e.ctx, k.account, k.id) })
	}
}

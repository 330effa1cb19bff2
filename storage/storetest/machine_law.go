package storetest

import (
	"time"

	"pgregory.net/rapid"

	"github.com/limitkeeper/limitkeeper/core"
)

// checkLaw checks the law of [core.Store.Days]: the days of a window add up to the usage of the counter in that window, for each meter and each window
// that begins at midnight. For a month, the law is always true. For another period, it is true unless a change was cut off at 0 in some windows only.
func (m *machine) checkLaw(t *rapid.T, account string) {
	store, ok := m.e.Store.(core.Importer)
	if !ok || m.imports {
		return
	}
	ids := []core.CounterID{{Account: account, UserID: int64(1 + m.checks/2%3)}}
	if n := len(m.keys); n > 0 {
		k := m.keys[max(0, n-1-m.checks%7)]
		ids = append(ids, core.CounterID{Account: k.account, KeyID: k.id})
	}
	for _, id := range ids {
		// After a clock has stepped back, anchors may come into force before the latest count, and begin other windows.
		if anchors, ok := m.anchorsOf(id); ok && !(m.steppedBack && len(anchors) > 0) {
			m.lawOf(t, store, id, anchors)
		}
	}
}

// anchorsOf returns the anchors of the user of a counter. ok is false for a missing counter, and for a key that may have counted under the
// anchors of another user.
func (m *machine) anchorsOf(id core.CounterID) (as core.Anchors, ok bool) {
	user := id.UserID
	if id.KeyID != "" {
		k, err := m.model.Key(m.e.ctx, id.Account, id.KeyID)
		if err != nil || m.renewed[id.Account+id.KeyID] {
			return nil, false
		}
		user = k.UserID
		entries, _, _ := m.model.History(m.e.ctx, id, time.Time{}, core.Page{Number: 1, Size: 10_000})
		for _, x := range entries {
			if x.UserID != user {
				return nil, false
			}
		}
	}
	u, err := m.model.User(m.e.ctx, id.Account, user)
	if err != nil {
		return nil, false
	}
	return u.Anchors, true
}

// lawOf checks the law for one counter.
func (m *machine) lawOf(t *rapid.T, store core.Importer, id core.CounterID, anchors core.Anchors) {
	counters, err := store.Counters(m.e.ctx, []core.CounterID{id})
	m.e.ok("Counters", err)
	days, err := store.CounterDays(m.e.ctx, id)
	m.e.ok("CounterDays", err)
	c := &counters[0]
	m.hoursLaw(t, id, days)
	at := time.Unix(max(m.now.Unix(), c.At), 0)
	since := anchors.Since(at)
	for _, meter := range []string{core.MeterRequests, "tokens"} {
		for _, p := range core.PlanPeriods() {
			start := time.Unix(since[p], 0)
			if !start.Equal(core.DateOf(start).Start()) || p != core.Month && m.uneven[id] {
				continue
			}
			var sum int64
			for i := range days {
				if !days[i].Date.IsHour() && days[i].Date >= core.DateOf(start) {
					day := days[i].Totals(id.KeyID == "")
					sum += day.Of(meter).Used()
				}
			}
			if used := c.Usage(meter, p, anchors, at).Used; used != sum {
				t.Fatalf("the days of the %v of %+v add up to %d %s, and its counter has %d. Days since %v: %+v", p, id, sum, meter, used, start, days)
			}
		}
	}
}

// hoursLaw checks that the hours of each of the last days add up to that day, for each meter.
func (m *machine) hoursLaw(t *rapid.T, id core.CounterID, days []core.CounterDay) {
	if m.uneven[id] {
		return
	}
	for _, shared := range []bool{false, true} {
		sums := map[core.Date]core.DayTotals{}
		for i := range days {
			if d := days[i].Totals(shared); d.Date.IsHour() {
				sum := sums[d.Date.Day()]
				sum.Add(&d)
				sums[d.Date.Day()] = sum
			}
		}
		oldest := core.DateOf(m.latest) - core.HoursKept/24 + 1
		for i := range days {
			d := days[i].Totals(shared)
			if d.Date.IsHour() || d.Date < oldest {
				continue
			}
			sum := sums[d.Date]
			for _, meter := range []string{core.MeterRequests, core.MeterCount, "tokens"} {
				if sum.Of(meter) != d.Of(meter) {
					t.Fatalf("the hours of %v of %+v add up to %+v %s, and the day has %+v. All: %+v", d.Date, id, sum.Of(meter), meter, d.Of(meter), days)
				}
			}
		}
	}
}

// notingCuts runs an adjustment or a settlement. It sets uneven for each counter that does not change by the same number in all its windows.
func (m *machine) notingCuts(c *core.Consumption, change func()) {
	ids := []core.CounterID{{Account: c.Account, KeyID: c.KeyID}, {Account: c.Account, UserID: c.UserID}}
	before, _ := m.model.Counters(m.e.ctx, ids)
	change()
	after, _ := m.model.Counters(m.e.ctx, ids)
	for i, id := range ids {
		at := time.Unix(max(c.Entry.At.Unix(), after[i].At), 0)
		since := c.Anchors.Since(at)
		for _, meter := range []string{core.MeterRequests, "tokens"} {
			changed := map[int64]bool{}
			for _, p := range core.PlanPeriods() {
				if c.Settlement == nil || c.Settlement.HeldAt.Unix() >= since[p] {
					changed[after[i].Usage(meter, p, c.Anchors, at).Used-before[i].Usage(meter, p, c.Anchors, at).Used] = true
				}
			}
			m.uneven[id] = m.uneven[id] || len(changed) > 1
		}
	}
}

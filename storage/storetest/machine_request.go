package storetest

import (
	"strings"
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
	return m.anchored(endpoint(request(k, m.someNow()), "/%d", m.serial))
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
			rapid.SampledFrom(core.PlanPeriods()).Draw(t, "period"), rapid.Int64Range(0, 12).Draw(t, "limit"))
		switch rapid.IntRange(0, 49).Draw(t, "rare") {
		case 0:
			c = cost(limit(c, c.Period, core.MaxLimit), core.MaxCost)
		case 1, 2, 3:
			if !m.obeys {
				c.Entry.Endpoint, c.Entry.Method, c.Entry.IP = "/"+awkward+strings.Repeat("x", 1900), "PROPFIND", "2001:db8::1%eth0"
			}
		}
		m.request(t, m.called(t, m.limited(t, c)))
	}
}

// limited gives some requests a rate, other meters and limits.
func (m *machine) limited(t *rapid.T, c core.Consumption) core.Consumption {
	if rapid.IntRange(0, 3).Draw(t, "rated") == 0 {
		c = atRate(c, 1, rapid.SampledFrom([]core.RatePer{core.PerSecond, core.PerMinute}).Draw(t, "per"), rapid.Int64Range(1, 3).Draw(t, "burst"))
	}
	if rapid.IntRange(0, 3).Draw(t, "own rate") == 0 && c.KeyID != "" {
		c.Own.Rate = &core.Rate{Requests: 1, Per: core.PerMinute, Burst: rapid.Int64Range(1, 3).Draw(t, "own burst")}
	}
	if rapid.IntRange(0, 2).Draw(t, "limited") > 0 {
		return c
	}
	c = tokens(c, rapid.Int64Range(0, 3).Draw(t, "tokens"))
	c.Further = drawLimits(t)
	c.OfUser = uint64(rapid.IntRange(0, 1<<(1+len(c.Further))-1).Draw(t, "overrides"))
	if rapid.Bool().Draw(t, "own") && c.KeyID != "" {
		c.Own.Limits = drawLimits(t)
	}
	c.Free = rapid.IntRange(0, 3).Draw(t, "free") == 0
	c.Later = rapid.SampledFrom([][]string{nil, nil, {core.MeterRequests}, {"tokens"}, {core.MeterRequests, "tokens"}}).Draw(t, "later")
	c.OnExceed = core.OnExceed(rapid.IntRange(0, 4).Draw(t, "on exceed") == 0)
	if rapid.IntRange(0, 3).Draw(t, "unlimited") == 0 {
		c.Limit = core.Unlimited
	}
	return c
}

// drawLimits draws a few small limits.
func drawLimits(t *rapid.T) (list []core.Limit) {
	for range rapid.IntRange(0, 2).Draw(t, "limits") {
		list = append(list, core.Limit{Meter: rapid.SampledFrom([]string{core.MeterRequests, "tokens"}).Draw(t, "meter"),
			Max: rapid.Int64Range(1, 15).Draw(t, "max"), Period: rapid.SampledFrom(core.Periods()).Draw(t, "of"),
			OnExceed: core.OnExceed(rapid.IntRange(0, 4).Draw(t, "exceed") == 0)})
	}
	return list
}

// keyless makes a few requests of a user without a key.
func (m *machine) keyless(t *rapid.T) {
	for range rapid.IntRange(1, 3).Draw(t, "times") {
		c := cost(ofUser(m.requestOf(m.aKey(t))), rapid.Int64Range(0, 2).Draw(t, "cost"))
		m.request(t, m.limited(t, limit(c, core.Day, rapid.Int64Range(0, 12).Draw(t, "limit"))))
	}
}

// refused makes a request with a key that is disabled or has expired.
func (m *machine) refused(t *rapid.T) {
	c := m.requestOf(m.aKey(t))
	c.Refused = rapid.SampledFrom(core.Reasons()[2:]).Draw(t, "reason")
	c.RequestID = rapid.SampledFrom([]string{"", "id 1"}).Draw(t, "request id") // of an earlier request, too: it is no repeat
	m.request(t, cost(c, rapid.Int64Range(0, 1).Draw(t, "cost")))
}

// missing makes a request or an adjustment with a missing key, or with a missing user.
func (m *machine) missing(t *rapid.T) {
	c := m.called(t, limit(m.requestOf(m.aKey(t)), core.Day, rapid.Int64Range(0, 1).Draw(t, "limit")))
	c = cost(c, rapid.Int64Range(0, 1).Draw(t, "cost"))
	adjusts := rapid.Bool().Draw(t, "adjusts")
	if adjusts {
		c = adjusted(c, core.MeterRequests, 3)
	}
	if rapid.Bool().Draw(t, "key") {
		c.KeyID, c.KeySeq = "key_missing", 1000
		m.consumeBoth(t, c)
		return
	}
	if c.UserID = 99; adjusts {
		c = ofUser(c)
		c.Account = m.anyAccount(t)
	}
	m.consumeBoth(t, c)
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
	if c.Shared && c.KeyID != "" && rapid.IntRange(0, 2).Draw(t, "own") == 0 {
		c.Shared, c.OwnOnly = false, true
	}
	m.request(t, c)
}

// likeIDs are pairs of request ids that differ where a store may not look: in case, at the end, behind a zero, in the form of a
// character, and in bytes that are no text.
var likeIDs = [][]string{{"id 3", "ID 3"}, {"id", "id "}, {"i\x00", "i\x00d"}, {"é", "e\u0301"}, {"\xff", "\xfe"},
	{strings.Repeat("x", core.MaxRequestIDLength-1) + "a", strings.Repeat("x", core.MaxRequestIDLength-1) + "b"}}

// called gives some requests an id, often an earlier one of the key.
func (m *machine) called(t *rapid.T, c core.Consumption) core.Consumption {
	c.RequestID = rapid.SampledFrom(append([]string{"", "id 1"}, m.likeIDs...)).Draw(t, "request id")
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
		c.KeySeq, c.UserID, c.Entry.UserID, c.Shared = k.Seq, k.UserID, k.UserID, k.PlanID == "" && !c.OwnOnly
	} else if m.renewed[c.Account+c.KeyID] {
		t.SkipNow() // another key may have its Seq, and a store may find the key by the Seq
	}
	if c.Entry.At = m.now; c.Hold != nil {
		c.Hold = m.newHold(c.UserID)
	}
	m.request(t, m.unlessUnsure(m.anchored(endpoint(c, "/again"))))
}

// replaceKey deletes the key of an earlier request, puts a new one with its id, and repeats the request, which then counts.
func (m *machine) replaceKey(t *rapid.T) {
	if len(m.named) == 0 || m.obeys {
		t.SkipNow()
	}
	c := m.named[len(m.named)-1]
	k, err := m.model.Key(m.e.ctx, c.Account, c.KeyID)
	if err != nil || c.Adjustment != nil {
		t.SkipNow()
	}
	k.Seq, k.Previous = 0, nil
	for _, fn := range []func(core.Tx) error{func(tx core.Tx) error { return tx.DeleteKey(k.ID) }, putting(k)} {
		m.both(t, "Update", func(s core.Store) (any, error) { return nil, s.Update(m.e.ctx, c.Account, fn) })
	}
	m.request(t, m.unlessUnsure(withRequestID(m.requestOf(k), c.RequestID)))
}

// flood makes so many requests in one second that some denials are omitted. After the first denial
// all are denied, so flood waits for their entries only at the end, sometimes after it has deleted the key.
func (m *machine) flood(t *rapid.T) {
	c := m.requestOf(m.aKey(t))
	c.Limit = rapid.Int64Range(1, 4).Draw(t, "limit")
	for range rapid.IntRange(5, 20).Draw(t, "times") {
		c = endpoint(c, "/%d", m.serial)
		m.serial++
		m.consumeBoth(t, c)
	}
	if rapid.IntRange(0, 9).Draw(t, "delete") == 0 {
		m.both(t, "DeleteKey", func(s core.Store) (any, error) {
			return nil, s.Update(m.e.ctx, c.Account, func(tx core.Tx) error { return tx.DeleteKey(c.KeyID) })
		})
	}
	m.awaitDenials(t, c)
}

// request makes a request. After a denial it waits for the entry, so that the order of the history
// is known.
func (m *machine) request(t *rapid.T, c core.Consumption) {
	if c.Adjustment != nil {
		m.notingCuts(&c, func() { m.consumeBoth(t, c) })
		return
	}
	if !m.consumeBoth(t, c) {
		m.awaitDenials(t, c)
	}
}

// consumeBoth makes a request to both stores and reports whether it is allowed. A store may drop a bucket that is full at the latest time, so a
// request at an earlier time has no rate.
func (m *machine) consumeBoth(t *rapid.T, c core.Consumption) bool {
	if m.now.Before(m.latest) {
		c.Rate, c.Own.Rate = nil, nil
	}
	answer, err := m.both(t, "Consume", func(s core.Store) (any, error) {
		given := copyOf(c)
		defer func() { spoil(&given) }()
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
	if c.KeyID != "" {
		m.await(t, core.CounterID{Account: c.Account, KeyID: c.KeyID})
	}
	m.await(t, core.CounterID{Account: c.Account, UserID: c.UserID})
}

// await waits until a history has as many entries as in the model, and compares the newest ones.
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
	m.bothHistory(t, of)
}

// bothHistory compares the newest entries of a history.
func (m *machine) bothHistory(t *rapid.T, of core.CounterID) {
	m.both(t, "History", func(s core.Store) (any, error) {
		return listed(s.History(m.e.ctx, of, time.Time{}, core.Page{Number: 1, Size: 100}))
	})
}

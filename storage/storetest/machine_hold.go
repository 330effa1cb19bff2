package storetest

import (
	"time"

	"pgregory.net/rapid"

	"github.com/limitkeeper/limitkeeper/core"
)

// heldRef is a hold that the machine has opened.
type heldRef struct{ account, id string }

// hold makes a few requests that open holds.
func (m *machine) hold(t *rapid.T) {
	for range rapid.IntRange(1, 3).Draw(t, "times") {
		c := m.requestOf(m.aKey(t))
		if rapid.IntRange(0, 4).Draw(t, "keyless") == 0 {
			c = ofUser(c)
		}
		c = m.called(t, m.limited(t, limit(cost(c, rapid.Int64Range(0, 3).Draw(t, "cost")), core.Month, rapid.Int64Range(3, 40).Draw(t, "limit"))))
		if c.KeyID == "" || m.steppedBack { // a hold is not before its counters: its id is remembered longer
			c.RequestID = ""
		}
		c.Free = true // else a request without any cost is a look
		c.Concurrency = rapid.SampledFrom([]int64{0, 0, 1, 3}).Draw(t, "concurrency")
		if c.KeyID != "" {
			c.Own.Concurrency = rapid.SampledFrom([]int64{0, 0, 0, 2}).Draw(t, "own concurrency")
		}
		c.Hold = m.newHold(c.UserID)
		c.Hold.OnExpiry = core.OnExpiry(rapid.Bool().Draw(t, "release"))
		c.Hold.ExpiresAt = c.Hold.ExpiresAt.Add(rapid.SampledFrom([]time.Duration{0, time.Hour, core.MaxHoldTime}).Draw(t, "lasts"))
		c.Hold.PricedAt = rapid.SampledFrom([]time.Time{{}, noon}).Draw(t, "priced at")
		c.Hold.Path = rapid.SampledFrom([]string{"", "/a%2Fb"}).Draw(t, "path")
		m.holds = append(m.holds, heldRef{c.Account, c.Hold.ID})
		if c.Hold.OnExpiry == core.ReleaseHeld { // the store may cut off the release at the end of the hold
			m.uneven[core.CounterID{Account: c.Account, KeyID: c.KeyID}], m.uneven[core.CounterID{Account: c.Account, UserID: c.UserID}] = true, true
		}
		m.request(t, c)
	}
}

// newHold returns a hold of a second. Its id is not drawn: no two holds have the same.
func (m *machine) newHold(user int64) *core.NewHold {
	return &core.NewHold{ID: core.NewHoldID(user), ExpiresAt: m.now.Truncate(time.Millisecond).Add(time.Second)}
}

// settle ends one of the latest holds, or an earlier one again.
func (m *machine) settle(t *rapid.T) {
	if len(m.holds) == 0 {
		t.SkipNow()
	}
	of := m.holds[max(0, len(m.holds)-1-rapid.IntRange(0, 9).Draw(t, "hold"))]
	h, err := m.model.Hold(m.e.ctx, of.account, of.id)
	if err != nil || !m.stays(of.account, h) {
		t.SkipNow()
	}
	c := m.anchored(*h.Settle(of.account, core.HoldReleased, 0, nil, m.now, forever))
	if rapid.Bool().Draw(t, "settle") {
		c = m.anchored(*h.Settle(of.account, core.HoldSettled, rapid.Int64Range(0, 4).Draw(t, "cost"), nil, m.now, forever))
		c = tokens(c, rapid.Int64Range(0, 9).Draw(t, "tokens"))
	}
	m.notingCuts(&c, func() {
		m.both(t, "Settle", func(s core.Store) (any, error) {
			given := copyOf(c)
			defer func() { spoil(&given) }()
			h, repeated, err := s.Settle(m.e.ctx, &given)
			return struct {
				Hold     *core.Hold
				Repeated bool
			}{h, repeated}, err
		})
	})
	m.awaitDenials(t, c)
	m.both(t, "Hold", func(s core.Store) (any, error) { return s.Hold(m.e.ctx, of.account, of.id) })
}

// stays reports whether the key of a hold is as it was. Stores differ on the holds of keys that have moved.
func (m *machine) stays(account string, h *core.Hold) bool {
	if h.KeyID == "" {
		return true
	}
	k, err := m.model.Key(m.e.ctx, account, h.KeyID)
	return err == nil && k.Seq == h.KeySeq && k.UserID == h.UserID
}

// expire ends the holds of an account that have expired.
func (m *machine) expire(t *rapid.T) {
	account := m.account(t)
	m.both(t, "ExpireHolds", func(s core.Store) (any, error) { return nil, s.ExpireHolds(m.e.ctx, account, m.now, forever) })
}

package core

import "time"

// Settlement ends a hold. The cost and the costs of its [Consumption] replace the held costs, in the windows in which the hold was
// counted.
type Settlement struct {
	HoldID string      `json:"hold_id"`
	Status HoldStatus  `json:"status"`          // HoldSettled, HoldReleased, or HoldExpired for a hold with ReleaseHeld
	HeldAt time.Time   `json:"held_at"`         // the At of the hold
	Cost   int64       `json:"cost"`            // held, of the meter requests
	Costs  []MeterCost `json:"costs,omitempty"` // held, of the other meters, sorted
}

// Settle replaces the held costs of a settlement by the costs of a charge. It changes the open windows that contain the time of the hold.
// The time of the charge is not before At.
func (c *Counter) Settle(s *Settlement, ch *Charge) {
	c.open(ch)
	since, held := ch.since(), s.HeldAt.Unix()
	c.Requests.settle(ch.Cost-s.Cost, held, since)
	if DateOf(s.HeldAt) == DateOf(time.Unix(c.At, 0)) {
		c.Today = addBounded(c.Today, ch.Cost-s.Cost)
	}
	for _, m := range s.Changes(ch.Costs) {
		c.meter(m.Meter).settle(m.Cost, held, since)
	}
}

// CutOff returns the parts of the differences that [Counter.Settle] with the same arguments cuts off, because the usage in the month stays from 0 to
// MaxLimit. It has an element for each meter with such a part: positive for a part that is not subtracted, negative for a part that is not added.
// CutOff does not change the counter.
func (c *Counter) CutOff(s *Settlement, ch *Charge) (cut []MeterCost) {
	since := ch.since()
	if s.HeldAt.Unix() < since[Month] {
		return nil
	}
	add := func(meter string, by int64) {
		used := c.used(meter, Month, since)
		if n := addBounded(used, by) - used - by; n != 0 {
			cut = append(cut, MeterCost{meter, n})
		}
	}
	add(MeterRequests, ch.Cost-s.Cost)
	for _, m := range s.Changes(ch.Costs) {
		add(m.Meter, m.Cost)
	}
	return cut
}

// since returns the starts of the windows that contain the time of the charge.
func (ch *Charge) since() *Since {
	if ch.Since == nil {
		return new(Anchors(nil).Since(ch.At))
	}
	return ch.Since
}

// settle adds a difference to the usage in the windows that contain a time, in Unix seconds.
func (t *PeriodUsage) settle(by, at int64, since *Since) {
	for p := range t {
		if at >= since[p] {
			t[p] = addBounded(t[p], by)
		}
	}
}

// addBounded adds a difference to a usage. The sum is bounded by 0 and MaxLimit.
func addBounded(used, by int64) int64 { return min(max(0, min(used, MaxLimit)+by), MaxLimit) }

// Changes returns final cost minus held cost for each meter other than requests. Both lists of costs are sorted, and so is the result.
func (s *Settlement) Changes(final []MeterCost) (list []MeterCost) {
	for _, m := range final {
		list = append(list, MeterCost{m.Meter, m.Cost - costIn(s.Costs, m.Meter)})
	}
	for _, m := range s.Costs {
		if costIn(final, m.Meter) == 0 {
			list = append(list, MeterCost{m.Meter, -m.Cost})
		}
	}
	SortCosts(list)
	return list
}

// costIn returns the cost on a meter, 0 if the list does not name the meter.
func costIn(list []MeterCost, meter string) int64 {
	for _, m := range list {
		if m.Meter == meter {
			return m.Cost
		}
	}
	return 0
}

// Expiry returns the settlement that gives back the held costs of an expired hold. Its time is that of after, a request later than the end of
// the hold. after has the account, the anchors of the user of the hold, and the retention.
func (h *Hold) Expiry(after *Consumption) *Consumption {
	c := h.settlement(after.Account, HoldExpired, after.Entry.At, after.Retention)
	c.Anchors = after.Anchors
	return c
}

// settlement returns the consumption that ends the hold with final costs of 0.
func (h *Hold) settlement(account string, status HoldStatus, at time.Time, retention time.Duration) *Consumption {
	return &Consumption{Account: account, KeyID: h.KeyID, KeySeq: h.KeySeq, UserID: h.UserID, Shared: h.Shared, Retention: retention,
		Entry:      Entry{At: at, KeyID: h.KeyID, UserID: h.UserID},
		Settlement: &Settlement{HoldID: h.ID, Status: status, HeldAt: h.At, Cost: h.Cost, Costs: h.Costs}}
}

// Settle returns the consumption that ends the hold with a status and final costs. A release has the final costs 0.
func (h *Hold) Settle(account string, status HoldStatus, cost int64, costs []MeterCost, at time.Time, retention time.Duration) *Consumption {
	c := h.settlement(account, status, at, retention)
	c.Cost, c.Costs = cost, costs
	c.Entry.Cost, c.Entry.Costs = cost, costs
	return c
}

// Close returns the hold as it is after a settlement.
func (h Hold) Close(c *Consumption) *Hold {
	h.Status, h.ClosedAt = c.Settlement.Status, c.Entry.At
	if h.Status == HoldSettled {
		h.Settled, h.SettledCosts = c.Cost, c.Costs
	}
	if h.Status == HoldExpired {
		h.ClosedAt = time.Time{}
	}
	return &h
}

// Overrun returns final cost minus held cost for each meter on which a settled hold has cost more than was held, sorted by meter.
func (h *Hold) Overrun() (list []MeterCost) {
	if h.Status != HoldSettled {
		return nil
	}
	s := Settlement{Costs: h.Costs}
	for _, m := range append(s.Changes(h.SettledCosts), MeterCost{MeterRequests, h.Settled - h.Cost}) {
		if m.Cost > 0 {
			list = append(list, m)
		}
	}
	SortCosts(list)
	return list
}

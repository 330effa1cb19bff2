package core

// Adjustment changes the usage of one meter of a counter by hand: a grant, a charge or a reset.
type Adjustment struct {
	Meter  string `json:"meter"`
	Set    bool   `json:"set,omitempty"` // the usage in the open window of Period becomes Value, and changes as much in every other period; else Value is added in every period
	Period Period `json:"period,omitempty"`
	Value  int64  `json:"value"` // from -MaxLimit to MaxLimit; with Set from 0
	Reason string `json:"reason"`
}

// Adjust changes the usage in the windows that contain the time of the charge, by the same number in each: by the value, or with Set by its difference to
// the usage in the period. The costs of the charge are not used. A usage stays between 0 and MaxLimit. Adjust returns by how much it has changed the usage in the month.
func (c *Counter) Adjust(a *Adjustment, ch *Charge) (changed int64) {
	c.open(ch)
	t := &c.Requests
	if a.Meter != MeterRequests {
		t = c.meter(a.Meter)
	}
	by, month := a.Value, t[Month]
	if a.Set {
		by -= t[a.Period]
	}
	for p := range t {
		t[p] = addBounded(t[p], by)
	}
	return t[Month] - month
}

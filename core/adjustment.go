package core

// Adjustment changes the usage of one meter of a counter by hand: a grant, a charge or a reset.
type Adjustment struct {
	Meter  string `json:"meter"`
	Set    bool   `json:"set,omitempty"`    // Value is the new usage in the open window of Period; otherwise Value is a difference
	Period Period `json:"period,omitempty"` // only with Set
	Value  int64  `json:"value"`            // from -MaxLimit to MaxLimit; with Set from 0
	Reason string `json:"reason"`
}

// Adjust adds one difference to the usage in each window that contains the time of the charge. The difference is Value; with Set, it is Value minus the
// usage in the window of Period. A usage stays between 0 and MaxLimit. The costs of the charge are ignored. Adjust returns the change of the usage in the
// month.
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

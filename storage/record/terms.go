package record

import "github.com/limitkeeper/limitkeeper/core"

// Terms codes terms without their rates. Decoding fails for an unknown period.
//
//	primary limit          see limit
//	plan id, plan name     texts
//	overrides of the user  uvarint, see core.Terms.OfUser
//	further limits         their number, a uvarint; of each the meter, a text, then see limit
//	limits of the key      the same
func (c *Codec) Terms(t *core.Terms) {
	primary := t.LimitAt(0)
	c.limit(&primary)
	if c.Decodes() {
		t.Period, t.OnExceed, t.Limit = primary.Period, primary.OnExceed, primary.Max
	}
	c.Text(&t.PlanID)
	c.Text(&t.PlanName)
	Number(c, &t.OfUser)
	for _, list := range []*[]core.Limit{&t.Further, &t.Own.Limits} {
		List(c, list, func(l *core.Limit) {
			c.Text(&l.Meter)
			c.limit(l)
		})
	}
}

// limit codes a limit without its meter: twice the period, plus 1 for a limit that denies nothing, and the maximum: uvarints.
func (c *Codec) limit(l *core.Limit) {
	period := uint64(l.Period) << 1
	if l.OnExceed == core.AllowExceed {
		period |= 1
	}
	Number(c, &period)
	Number(c, &l.Max)
	if c.Decodes() {
		if l.Period, l.OnExceed = core.Period(period>>1), period&1 == 1; period>>1 > uint64(core.Lifetime) {
			c.Fail()
		}
	}
}

// Costs codes costs: their number, a uvarint, and for each its meter, a text, and its cost, a uvarint.
func (c *Codec) Costs(list *[]core.MeterCost) {
	List(c, list, func(m *core.MeterCost) {
		c.Text(&m.Meter)
		Number(c, &m.Cost)
	})
}

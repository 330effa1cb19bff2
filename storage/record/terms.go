package record

import (
	"encoding/binary"

	"github.com/limitkeeper/limitkeeper/core"
)

// AppendTerms appends terms without their rates.
//
//	primary limit          see appendMax
//	plan id, plan name     texts
//	overrides of the user  uvarint, see core.Terms.OfUser
//	further limits         their number, a uvarint; of each the meter, a text, then see appendMax
//	limits of the key      the same
func AppendTerms(b []byte, t *core.Terms) []byte {
	b = appendMax(b, t.LimitAt(0))
	b = AppendText(AppendText(b, t.PlanID), t.PlanName)
	b = appendLimits(binary.AppendUvarint(b, t.OfUser), t.Further)
	return appendLimits(b, t.Own.Limits)
}

func appendLimits(b []byte, limits []core.Limit) []byte {
	b = binary.AppendUvarint(b, uint64(len(limits)))
	for _, l := range limits {
		b = appendMax(AppendText(b, l.Meter), l)
	}
	return b
}

// appendMax appends twice the period, plus 1 for a limit that denies nothing, and the maximum: uvarints.
func appendMax(b []byte, l core.Limit) []byte {
	period := uint64(l.Period) << 1
	if l.OnExceed == core.AllowExceed {
		period |= 1
	}
	return binary.AppendUvarint(binary.AppendUvarint(b, period), uint64(l.Max))
}

// Terms reads what [AppendTerms] appends.
func (r *Reader) Terms() (t core.Terms) {
	primary := r.max(core.MeterRequests)
	t.Period, t.OnExceed, t.Limit = primary.Period, primary.OnExceed, primary.Max
	t.PlanID, t.PlanName, t.OfUser = r.Text(), r.Text(), r.Uvarint()
	t.Further, t.Own.Limits = r.limits(), r.limits()
	return t
}

func (r *Reader) limits() (list []core.Limit) {
	for n := r.Uvarint(); n > 0 && !r.Failed(); n-- {
		list = append(list, r.max(r.Text()))
	}
	return list
}

func (r *Reader) max(meter string) core.Limit {
	period, most := r.Uvarint(), int64(r.Uvarint())
	l := core.Limit{Meter: meter, Max: most, Period: core.Period(period >> 1), OnExceed: period&1 == 1}
	if period>>1 > uint64(core.Lifetime) {
		r.Fail()
	}
	return l
}

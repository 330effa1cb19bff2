package badgerstore

import (
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// decodeEvent decodes a record of the event log. position is the position of the record.
func decodeEvent(payload []byte, position int64) (e event, err error) {
	var more byte
	if payload[0] == recordEvent && len(payload) > 2 {
		if more, payload = payload[1], payload[2:]; more == 0 || more > moreFlags {
			return event{}, errEvent
		}
	}
	r := decoder{payload[1:]}
	flags := payload[0]
	if flags >= recordRedo {
		return event{}, errEvent
	}
	e.Denied, e.shared, e.uncounted = flags&flagDenied != 0, flags&flagShared != 0, flags&flagUncounted != 0
	e.account, e.key, e.UserID = uint32(r.uvarint()), int64(r.uvarint()), int64(r.uvarint())
	e.At = r.time()
	e.Cost = int64(r.uvarint())
	e.retention = time.Duration(r.uvarint()) * time.Minute
	e.ofKey, e.ofUser = r.link(position), r.link(position)
	e.KeyID, e.Endpoint, e.Method, e.IP = r.text(), r.text(), r.text(), r.text()
	if flags&flagCosts != 0 {
		for n := r.uvarint(); n > 0 && !r.failed(); n-- {
			e.Costs = append(e.Costs, core.MeterCost{Meter: r.text(), Cost: int64(r.uvarint())})
		}
	}
	if e.Denied {
		e.Reason = core.ReasonQuota
	}
	if more&moreReason != 0 {
		e.Reason = r.reason()
	}
	if more&moreAdjustment != 0 {
		e.Adjustment = r.adjustment()
	}
	if flags&flagSince != 0 {
		since := core.Anchors(nil).Since(e.At)
		for p := core.Day; p <= core.Year; p++ {
			since[p] = e.At.Unix() - r.varint()
		}
		e.since = &since
	}
	if flags&flagRequestID != 0 {
		e.requestID = r.text()
		e.first = r.answer(flags&flagLimits != 0)
	}
	if r.failed() || len(r.rest) > 0 {
		return event{}, errEvent
	}
	return e, nil
}

// flagByte returns 1 for true.
func flagByte(b bool) byte {
	if b {
		return 1
	}
	return 0
}

func (r *decoder) reason() core.Reason {
	if i := r.uvarint(); i < uint64(len(core.Reasons())) {
		return core.Reasons()[i]
	}
	r.fail()
	return ""
}

func (r *decoder) adjustment() *core.Adjustment {
	a := &core.Adjustment{Meter: r.text(), Set: r.uvarint() == 1, Period: core.Period(r.uvarint()), Value: r.varint(), Reason: r.text()}
	if a.Period > core.Lifetime {
		r.fail()
	}
	return a
}

func (r *decoder) link(position int64) (l link) {
	l.number = int64(r.uvarint())
	l.prev, l.jump = r.back(position), r.back(position)
	l.late = time.Duration(r.uvarint())
	return l
}

func (r *decoder) back(position int64) int64 {
	if n := int64(r.uvarint()); n != 0 {
		return position - n
	}
	return 0
}

func (r *decoder) answer(limits bool) *answer {
	v := new(answer)
	u := &v.result.Usage
	u.Used, u.Window.Start = int64(r.uvarint()), time.Unix(r.varint(), 0).UTC()
	v.terms.Period, v.terms.Limit = core.Period(r.uvarint()), int64(r.uvarint())
	v.terms.PlanID, v.terms.PlanName = r.text(), r.text()
	if r.failed() || v.terms.Period > core.Lifetime {
		r.fail()
		return v
	}
	if !limits {
		u.Window = v.terms.Period.Window(u.Window.Start)
		return v
	}
	u.Window.End = r.end()
	v.result.Deciding = int(r.uvarint())
	for n := r.uvarint(); n > 0 && !r.failed(); n-- {
		v.terms.Further = append(v.terms.Further, core.Limit{Meter: r.text(), Period: core.Period(r.uvarint()), Max: int64(r.uvarint())})
	}
	n := r.uvarint()
	if n > uint64(1+len(v.terms.Further)) || v.result.Deciding > len(v.terms.Further) {
		r.fail()
		return v
	}
	for i := range int(n) {
		used := core.Usage{Used: int64(r.uvarint()), Window: core.Window{Start: time.Unix(r.varint(), 0).UTC(), End: r.end()}}
		v.result.Limits = append(v.result.Limits, core.LimitUsage{Limit: v.terms.LimitAt(i), Usage: used})
	}
	if len(v.result.Limits) > 0 && v.terms.Limit == core.Unlimited {
		v.result.Limits[0] = core.LimitUsage{}
	}
	return v
}

// end reads the end of a window.
func (r *decoder) end() time.Time {
	if end := r.varint(); end != 0 {
		return time.Unix(end, 0).UTC()
	}
	return time.Time{}
}

package badgerstore

import (
	"cmp"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// decodeEvent decodes a record of the event log. position is the position of the record.
func decodeEvent(payload []byte, position int64) (e event, err error) {
	if !isEvent(payload) {
		return event{}, errEvent
	}
	r := newDecoder(payload)
	switch payload[0] {
	case recordHold:
		r.Uint(1)
		e.HoldID, e.hold = r.Text(), &core.NewHold{ExpiresAt: r.Time(), OnExpiry: core.OnExpiry(r.Uint(1) == 1), PricedAt: r.Time(), Path: r.Text()}
		e.hold.ID = e.HoldID
	case recordSettlement:
		r.Uint(1)
		e.Settlement = &core.Settlement{HoldID: r.Text(), Status: core.HoldStatus(r.Text()), HeldAt: r.Time(), Cost: int64(r.Uvarint()), Costs: r.costs()}
		e.opened = int64(r.Uvarint())
		for n := r.Uvarint(); n > 0 && !r.Failed(); n-- {
			e.cut = append(e.cut, core.MeterCost{Meter: r.Text(), Cost: r.Varint()})
		}
	}
	flags := byte(r.Uint(1))
	if flags >= recordRedo {
		return event{}, errEvent
	}
	e.Denied, e.shared, e.uncounted = flags&flagDenied != 0, flags&flagShared != 0, flags&flagUncounted != 0
	e.account, e.key, e.UserID = uint32(r.Uvarint()), int64(r.Uvarint()), int64(r.Uvarint())
	e.At = r.Time()
	e.Cost = int64(r.Uvarint())
	e.KeyID, e.Endpoint, e.Method, e.IP = r.Text(), r.Text(), r.Text(), r.Text()
	if flags&flagCosts != 0 {
		e.Costs = r.costs()
	}
	if e.uncounted {
		e.hold = nil
	}
	if e.Denied {
		e.Reason, e.Limit = r.reason()
	}
	if flags&flagAdjustment != 0 {
		e.Adjustment, e.ownOnly = r.adjustment()
		e.adjusted = r.Varint()
	}
	if flags&flagSince != 0 {
		since := core.Anchors(nil).Since(e.At)
		for p := core.Day; p <= core.Year; p++ {
			since[p] = e.At.Unix() - r.Varint()
		}
		e.since = &since
	}
	if flags&flagRequestID != 0 {
		id := r.Text()
		if e.RequestID = core.ShownRequestID(id); !e.Denied && !e.uncounted {
			e.idToFind, e.first = id, r.answer()
		}
	}
	e.ofKey, e.ofUser = r.link(position), r.link(position)
	if r.Failed() || !r.Ended() {
		return event{}, errEvent
	}
	return e, nil
}

func (r *decoder) costs() (costs []core.MeterCost) {
	for n := r.Uvarint(); n > 0 && !r.Failed(); n-- {
		costs = append(costs, core.MeterCost{Meter: r.Text(), Cost: int64(r.Uvarint())})
	}
	return costs
}

// reason reads the reason of a denial, and the limit that refused, nil for none.
func (r *decoder) reason() (reason core.Reason, l *core.RefusingLimit) {
	i := r.Uint(1)
	if int(i&^reasonLimit) >= len(core.Reasons()) {
		r.Fail()
		return "", nil
	}
	if i&reasonLimit != 0 {
		l = r.limit()
	}
	return core.Reasons()[i&^reasonLimit], l
}

// limit reads what appendLimit appends.
func (r *decoder) limit() *core.RefusingLimit {
	n := r.Uint(1)
	l := &core.RefusingLimit{Period: core.Period(n & 7), Meter: cmp.Or(r.Text(), core.MeterRequests), Max: int64(r.Uvarint()), Used: int64(r.Uvarint())}
	if l.Period > core.Lifetime || n>>3 >= uint64(len(origins)) {
		r.Fail()
		return nil
	}
	l.Of = origins[n>>3]
	return l
}

func (r *decoder) adjustment() (a *core.Adjustment, ownOnly bool) {
	a = &core.Adjustment{Meter: r.Text()}
	set := r.Uint(1)
	a.Set, ownOnly = set&1 != 0, set&2 != 0
	a.Period, a.Value, a.Reason = core.Period(r.Uvarint()), r.Varint(), r.Text()
	if a.Period > core.Lifetime {
		r.Fail()
	}
	return a, ownOnly
}

func (r *decoder) link(position int64) (l link) {
	l.number = int64(r.Uvarint())
	l.prev, l.jump = r.back(position), r.back(position)
	l.late = time.Duration(r.Uvarint())
	return l
}

func (r *decoder) back(position int64) int64 {
	if n := int64(r.Uvarint()); n != 0 {
		return position - n
	}
	return 0
}

func (r *decoder) answer() *answer {
	v := new(answer)
	v.result.Usage = r.usage()
	v.terms = r.Terms()
	v.result.Deciding = int(r.Uvarint())
	n := r.Uvarint()
	if n > uint64(v.terms.Limits()) || uint64(v.result.Deciding) >= uint64(v.terms.Limits()) {
		r.Fail()
		return v
	}
	for i := range int(n) {
		v.result.Limits = append(v.result.Limits, core.LimitUsage{Limit: v.terms.LimitAt(i), Of: v.terms.OriginAt(i), Usage: r.usage()})
	}
	if len(v.result.Limits) > 0 && v.terms.Limit == core.Unlimited {
		v.result.Limits[0] = core.LimitUsage{}
	}
	return v
}

// usage reads a usage and its window.
func (r *decoder) usage() (u core.Usage) {
	u.Used, u.Window.Start = int64(r.Uvarint()), time.Unix(r.Varint(), 0).UTC()
	if end := r.Varint(); end != 0 {
		u.Window.End = time.Unix(end, 0).UTC()
	}
	return u
}

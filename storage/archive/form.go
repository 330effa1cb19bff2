package archive

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/limitkeeper/limitkeeper/core"
)

// The check of a record holds it against the rules of the REST API, and against what a store can keep: another record would fail
// the comparison at the end of an import, or damage the store.

// The bounds of records.
const (
	maxID     = 64            // bytes
	maxNumber = core.MaxLimit // of usage, traffic, and resources: Redis computes with float64
	maxText   = 256           // bytes of a text of an event: the largest endpoint in a history
)

// latest is the latest time of a record. A time in the year 9999 has a window that ends in a year that RFC 3339 cannot write.
var latest = time.Date(2200, time.January, 1, 0, 0, 0, 0, time.UTC)

// isID reports whether a text can be the id of an account or resource. Stores use ids as parts of keys.
func isID(id string) bool {
	return len(id) > 0 && len(id) <= maxID && !strings.ContainsFunc(id, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && r != '_' && r != '-'
	})
}

// counter returns the counter of a record. The user of the counter has the anchors.
func (r *Counter) counter(anchors core.Anchors) (c core.Counter, err error) {
	c = core.Counter{At: r.At.Unix(), Today: r.Today, LastUsedAt: r.LastUsedAt, DeniedOmitted: r.DeniedOmitted}
	if t := r.LastRefusedAt; !t.IsZero() {
		if c.LastRefused = t.Unix(); c.LastRefused < 1 || t.Nanosecond() != 0 {
			return c, errors.New("last_refused_at must be after 1970-01-01T00:00:00Z, in whole seconds")
		}
	}
	if len(r.Usage) > (core.MaxMetersEver+1)*len(core.Periods()) {
		return c, fmt.Errorf("a counter must have at most %d meters", core.MaxMetersEver)
	}
	if c.At < 0 || !isNumber(r.Today, r.DeniedOmitted) {
		return c, fmt.Errorf("at must be 1970 or later, and today and denied_omitted must be from 0 to %d", int64(maxNumber))
	}
	meters := 0
	for _, u := range r.Usage {
		t := &c.Requests
		if u.Meter != core.MeterRequests {
			if !core.IsMeterName(u.Meter) {
				return c, fmt.Errorf("%.40q cannot be the name of a meter", u.Meter)
			}
			if t = c.Meter(u.Meter); t == nil {
				if meters++; meters > core.MaxMetersEver {
					return c, fmt.Errorf("a counter must have at most %d meters", core.MaxMetersEver)
				}
				c.SetMeter(u.Meter, core.PeriodUsage{})
				t = c.Meter(u.Meter)
			}
		}
		want := anchors.Window(u.Period, r.At).Start
		switch {
		case u.Used < 1 || u.Used > maxNumber:
			return c, fmt.Errorf("the usage of %s in the %v must be from 1 to %d", u.Meter, u.Period, int64(maxNumber))
		case t[u.Period] != 0:
			return c, fmt.Errorf("the usage of %s in the %v is there twice", u.Meter, u.Period)
		case !u.Start.Equal(want):
			return c, fmt.Errorf("the %v of %s that contains %s begins at %s, not at %s", u.Period, u.Meter, r.At.Format(time.RFC3339),
				want.Format(time.RFC3339), u.Start.Format(time.RFC3339))
		}
		t[u.Period] = u.Used
	}
	return c, nil
}

// check returns an error unless a store would export the counter as the same record. The user of the counter has the anchors.
func (r *Counter) check(anchors core.Anchors) error {
	c, err := r.counter(anchors)
	switch {
	case err != nil:
		return err
	case c.Same(&core.Counter{}):
		return errors.New("a counter without usage must have no record")
	case !reflect.DeepEqual(newCounter(r.CounterID, &c, anchors), r):
		return errors.New("at must be in whole seconds, and usage must be sorted by meter, requests first, then by period")
	}
	return nil
}

// counted returns the traffic of the day that the counter of the key or user has counted.
func (d *Day) counted() int64 {
	if d.KeyID != "" {
		return d.Allowed
	}
	return d.Shared.Allowed
}

// check returns an error unless a store would export the day as the same record. c is the counter of the same key or user.
func (d *Day) check(c *Counter) error {
	last := core.DateOf(c.At)
	switch {
	case !isNumber(d.Allowed, d.Denied, d.Shared.Allowed, d.Shared.Denied):
		return fmt.Errorf("its numbers must be from 0 to %d", int64(maxNumber))
	case d.Empty():
		return errors.New("a day without traffic must have no record")
	case d.UserID == 0 && d.Shared != core.Traffic{}:
		return errors.New("the day of a key, or of the deleted users, must have no shared traffic")
	case d.Date.IsHour() && (d.Traffic != core.Traffic{} || d.Shared != core.Traffic{}):
		return errors.New("the numbers of an hour must be in its meters")
	case d.CheckMeters(d.UserID != 0) != nil:
		return d.CheckMeters(d.UserID != 0)
	case d.Date > last && d.counted() != 0:
		return fmt.Errorf("it has allowed traffic, and the last day of the counter is %v", last)
	case d.Date == last && d.counted() != c.Today:
		return fmt.Errorf("its allowed traffic is %d, and must equal today of the counter, %d", d.counted(), c.Today)
	}
	return nil
}

// check returns an error unless a store can keep the event.
func (e *Event) check() error {
	texts, costs := []string{e.Endpoint, e.Method, e.IP, e.KeyID, e.HoldID}, e.Costs
	if a := e.Adjustment; a != nil {
		texts = append(texts, a.Reason)
		if !core.IsMeterName(a.Meter) || !isNumber(max(a.Value, -a.Value)) || !slices.Contains(core.Periods(), a.Period) {
			return fmt.Errorf("an adjustment must have the name of a meter, a period, and a value from %d to %d", -int64(maxNumber), int64(maxNumber))
		}
	}
	if st := e.Settlement; st != nil {
		texts, costs = append(texts, st.HoldID), slices.Concat(costs, st.Costs)
		if !isID(st.HoldID) || !isNumber(st.Cost) || !slices.Contains([]core.HoldStatus{core.HoldSettled, core.HoldReleased, core.HoldExpired}, st.Status) {
			return fmt.Errorf("a settlement must have the id of a hold, a cost from 0 to %d, and the status settled, released or expired", int64(maxNumber))
		}
	}
	if l := e.Limit; l != nil {
		if e.Reason != core.ReasonQuota || !core.IsMeterName(l.Meter) || !isNumber(l.Max, l.Used) || !slices.Contains(core.Periods(), l.Period) ||
			!slices.Contains([]core.Origin{core.OfPlan, core.OfUser, core.OfKey}, l.Of) {
			return fmt.Errorf("a limit must refuse for the reason quota, be of plan, user or key, and have the name of a meter, a period, and numbers from 0 to %d",
				int64(maxNumber))
		}
	}
	switch {
	case len(e.RequestID) > core.MaxRequestIDLength || !utf8.ValidString(e.RequestID):
		return fmt.Errorf("request_id must be UTF-8 of at most %d bytes", core.MaxRequestIDLength)
	case !isID(e.KeyID) && e.KeyID != "":
		return errors.New("key_id must be 1 to 64 letters, digits, _ or -")
	case e.UserID < 0 || e.UserID > maxNumber:
		return fmt.Errorf("user_id must be from 0 to %d", int64(maxNumber))
	case slices.ContainsFunc(texts, func(s string) bool { return !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl) }):
		return errors.New("its texts must be UTF-8 without control characters")
	case e.History != historyOfKey && e.History != historyOfUser:
		return fmt.Errorf("history must be %q or %q, got %.40q", historyOfKey, historyOfUser, e.History)
	case e.Denied != (e.Reason != "") || e.Denied && !slices.Contains(core.Reasons(), e.Reason):
		return fmt.Errorf("a denied request must have one of the reasons %v, an allowed one none; got %.40q", core.Reasons(), e.Reason)
	case slices.ContainsFunc(texts, func(s string) bool { return len(s) > maxText }):
		return fmt.Errorf("its texts must be at most %d bytes long", maxText)
	case !isNumber(e.Cost) || slices.ContainsFunc(costs, func(c core.MeterCost) bool { return !isNumber(c.Cost) }):
		return fmt.Errorf("its costs must be from 0 to %d", int64(maxNumber))
	case len(e.Costs) > core.MaxMetersEver || len(costs) > 2*core.MaxMetersEver || slices.ContainsFunc(costs, func(c core.MeterCost) bool { return !core.IsMeterName(c.Meter) }):
		return fmt.Errorf("costs must have at most %d meters, each with a valid name", core.MaxMetersEver)
	}
	return nil
}

// isNumber reports whether all numbers are from 0 to maxNumber.
func isNumber(numbers ...int64) bool {
	return !slices.ContainsFunc(numbers, func(n int64) bool { return n < 0 || n > maxNumber })
}

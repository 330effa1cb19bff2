package dashboard

import (
	"net/http"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// usage is the usage of a limit.
type usage struct {
	Used, Limit int64
	Meter       string // "" for requests
	Bar         usageBar
	Per         string    // the period, such as "a month"
	Reset       time.Time // end of the period; zero: never
}

// usageBar is a progress bar for the usage of a limit.
type usageBar struct {
	Now   float64 // in percent, at most 100
	Label string
	Class string // CSS class: low, high (80 % or more) or full
}

// newUsage returns the usage of a limit.
func newUsage(u core.LimitUsage) *usage {
	v := &usage{Used: u.Used, Limit: u.Max, Bar: newUsageBar(&u), Per: per(u.Period), Reset: u.Window.End}
	if u.Meter != core.MeterRequests {
		v.Meter = u.Meter
	}
	return v
}

// newUsages returns the usage of several limits.
func newUsages(limits []core.LimitUsage) (list []*usage) {
	for _, u := range limits {
		list = append(list, newUsage(u))
	}
	return list
}

// Unlimited reports whether there is no limit.
func (u *usage) Unlimited() bool { return u.Limit == core.Unlimited }

// Left returns the rest of the limit.
func (u *usage) Left() int64 { return core.Remaining(u.Used, u.Limit) }

// per returns a period as in "10 a month".
func per(p core.Period) string {
	switch p {
	case core.Lifetime:
		return "in its lifetime"
	case core.Hour:
		return "an hour"
	}
	return "a " + p.String()
}

// limit returns a limit in words.
func limit(max int64) string {
	if max == core.Unlimited {
		return "unlimited"
	}
	return number(max)
}

func newUsageBar(u *core.LimitUsage) usageBar {
	b := usageBar{Now: min(u.Percentage(), 100), Label: number(u.Used) + " of " + limit(u.Max) + " used", Class: "low"}
	switch {
	case u.Used >= u.Max:
		b.Class = "full"
	case b.Now >= 80:
		b.Class = "high"
	}
	return b
}

// Full reports whether the limit is used up.
func (b usageBar) Full() bool { return b.Class == "full" }

// userUsage is the usage of each counter of a user. A sum would hide a counter that is used up.
type userUsage struct {
	Rows  []counterRow // fullest first
	Total int          // number of counters, including those without a row
}

// counterRow is a counter of a user.
type counterRow struct {
	*usage
	Key  *core.Key // nil: the counter that keys share
	Plan *core.Plan
}

// Only returns the only counter, nil if there are several.
func (u *userUsage) Only() *usage {
	if len(u.Rows) == 1 && u.Total == 1 {
		return u.Rows[0].usage
	}
	return nil
}

// Full reports whether a counter is used up.
func (u *userUsage) Full() bool { return len(u.Rows) > 0 && u.Rows[0].Bar.Full() }

// userUsage returns the usage of the counters of a user.
func (q *request) userUsage(u *core.User) (*userUsage, error) {
	all, err := q.svc.UserUsage(q.r.Context(), q.account(), u.ID)
	if err != nil {
		return nil, err
	}
	v := &userUsage{Total: all.Total}
	for _, c := range all.Counters[:min(len(all.Counters), nearLimitRows)] {
		row := counterRow{usage: newUsage(c.Fullest()), Plan: c.Plan}
		if c.KeyID != "" {
			row.Key, err = q.svc.Key(q.r.Context(), q.account(), c.KeyID)
			if statuses[core.ErrorCode(err)] == http.StatusNotFound { // deleted meanwhile
				v.Total--
				continue
			}
			if err != nil {
				return nil, err
			}
		}
		v.Rows = append(v.Rows, row)
	}
	return v, nil
}

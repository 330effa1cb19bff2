package dashboard

import (
	"net/http"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// usage is how much of a limit is used.
type usage struct {
	Used, Limit int64
	Bar         usageBar
	Period      string    // in which it is counted
	Reset       time.Time // when the period ends
}

// usageBar is filled as far as a limit is used.
type usageBar struct {
	Now   float64 // in percent, at most 100
	Label string
	Class string // how full it is: low, high or full
}

// newUsage returns what a counter has used of the limit of a plan.
func newUsage(p *core.Plan, u core.Usage) *usage {
	return &usage{Used: u.Used, Limit: p.Limit, Bar: newUsageBar(u.Used, p.Limit), Period: p.Period.String(), Reset: u.Window.End}
}

// Left returns how much is left of the limit.
func (u *usage) Left() int64 { return core.Remaining(u.Used, u.Limit) }

func newUsageBar(used, limit int64) usageBar {
	b := usageBar{Now: min(core.Percentage(used, limit), 100), Label: number(used) + " of " + number(limit) + " used", Class: "low"}
	switch {
	case used >= limit:
		b.Class = "full"
	case b.Now >= 80:
		b.Class = "high"
	}
	return b
}

// Full reports whether nothing is left, so that requests are refused.
func (b usageBar) Full() bool { return b.Class == "full" }

// userUsage is the usage of the counters of a user. Their sum would hide a counter that is used up.
type userUsage struct {
	Rows  []counterRow // the one with the highest share of its limit first
	Total int          // of all counters, also those without a row
}

// counterRow is a counter of a user.
type counterRow struct {
	*usage
	Key  *core.Key // nil: the counter that keys share
	Plan *core.Plan
}

// Only returns the counter when there is no other, otherwise nil.
func (u *userUsage) Only() *usage {
	if len(u.Rows) == 1 && u.Total == 1 {
		return u.Rows[0].usage
	}
	return nil
}

// Full reports whether a counter is used up.
func (u *userUsage) Full() bool { return len(u.Rows) > 0 && u.Rows[0].Bar.Full() }

// userUsage returns what the counters of a user have used.
func (q *request) userUsage(u *core.User) (*userUsage, error) {
	all, err := q.svc.UserUsage(q.r.Context(), q.account(), u.ID)
	if err != nil {
		return nil, err
	}
	v := &userUsage{Total: all.Total}
	for _, c := range all.Counters[:min(len(all.Counters), nearest)] {
		row := counterRow{usage: newUsage(c.Plan, c.Usage), Plan: c.Plan}
		if c.KeyID != "" {
			row.Key, err = q.svc.Key(q.r.Context(), q.account(), c.KeyID)
			if statuses[core.ErrorCode(err)] == http.StatusNotFound { // deleted just now
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

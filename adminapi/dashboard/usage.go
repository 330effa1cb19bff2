package dashboard

import (
	"net/http"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// usage is the usage of a limit.
type usage struct {
	Used, Limit int64
	Bar         usageBar
	Period      string    // name of the period
	Reset       time.Time // end of the period
}

// usageBar is a progress bar for the usage of a limit.
type usageBar struct {
	Now   float64 // in percent, at most 100
	Label string
	Class string // CSS class: low, high (80 % or more) or full
}

// newUsage returns the usage of a plan by a counter.
func newUsage(p *core.Plan, u core.Usage) *usage {
	return &usage{Used: u.Used, Limit: p.Limit, Bar: newUsageBar(u.Used, p.Limit), Period: p.Period.String(), Reset: u.Window.End}
}

// Left returns the rest of the limit.
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
		row := counterRow{usage: newUsage(c.Plan, c.Usage), Plan: c.Plan}
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

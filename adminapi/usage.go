package adminapi

import (
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// limit is the JSON form of a limit and its usage.
type limit struct {
	Meter     string      `json:"meter"`
	Period    core.Period `json:"period"`
	Max       int64       `json:"max"`
	Used      int64       `json:"used"`
	Remaining int64       `json:"remaining"`
	ResetTime time.Time   `json:"reset_time"`
}

// meterRequests is the meter that every request counts on.
const meterRequests = "requests"

// viewLimits returns the limits of a plan, with the usage of a counter.
func viewLimits(p *core.Plan, u core.Usage) []limit {
	return []limit{{meterRequests, p.Period, p.Limit, u.Used, core.Remaining(u.Used, p.Limit), u.Window.End}}
}

// counter is the JSON form of a counter of a user.
type counter struct {
	KeyID    *string `json:"key_id"` // null: the counter that the keys on the user's plan share
	PlanName string  `json:"plan_name"`
	Limits   []limit `json:"limits"`
}

func viewCounters(list []core.LimitedCounter) []counter {
	views := make([]counter, len(list))
	for i, c := range list {
		views[i] = counter{orNull(c.KeyID), c.Plan.Name, viewLimits(c.Plan, c.Usage)}
	}
	return views
}

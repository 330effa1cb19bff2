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
	ResetTime *time.Time  `json:"reset_time"` // null: never
}

// viewLimits returns limits with their usage. It leaves out the missing primary limit of a plan.
func viewLimits(list []core.LimitUsage) []limit {
	views := make([]limit, 0, len(list))
	for _, u := range list {
		if !u.Limit.Unlimited() {
			views = append(views, limit{u.Meter, u.Period, u.Max, u.Used, u.Limit.Remaining(u.Used), orNull(u.Window.End)})
		}
	}
	return views
}

// maxOrNull returns a limit, null for none.
func maxOrNull(max int64) *int64 {
	if max == core.Unlimited {
		return nil
	}
	return &max
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
		views[i] = counter{orNull(c.KeyID), c.Plan.Name, viewLimits(c.Limits)}
	}
	return views
}

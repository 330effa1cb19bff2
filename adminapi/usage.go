package adminapi

import (
	"context"
	"net/http"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// limit is the JSON form of a limit and its usage.
type limit struct {
	Meter     string      `json:"meter"`
	Period    core.Period `json:"period"`
	Max       int64       `json:"max"`
	Used      int64       `json:"used"`
	Remaining int64       `json:"remaining"`
	ResetTime *time.Time  `json:"reset_time"` // null: never
	Of        core.Origin `json:"of"`
	Overage   *int64      `json:"overage,omitempty"` // of a limit that denies nothing
}

// viewLimits returns limits with their usage. It leaves out the missing primary limit of a plan.
func viewLimits(list []core.LimitUsage) []limit {
	views := make([]limit, 0, len(list))
	for _, u := range list {
		if !u.Limit.Unlimited() {
			views = append(views, limit{u.Meter, u.Period, u.Max, u.Used, u.Limit.Remaining(u.Used), orNull(u.Window.End), u.Of, u.Overage()})
		}
	}
	return views
}

// forecast is the JSON form of a limit, its usage, and the time at which the limit is used up.
type forecast struct {
	limit
	ExhaustsAt *time.Time `json:"exhausts_at"` // null: not before the reset
}

// viewForecasts is viewLimits with the time at which each limit is used up.
func viewForecasts(list []core.LimitUsage, exhaustsAt []time.Time) []forecast {
	views := make([]forecast, 0, len(list))
	for i := range list {
		for _, l := range viewLimits(list[i : i+1]) {
			views = append(views, forecast{l, orNull(exhaustsAt[i])})
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

func readAdjustment(m *members) service.AdjustmentCall {
	a := service.AdjustmentCall{Adjustment: core.Adjustment{Meter: core.MeterRequests, Reason: core.OrZero(m.Text("reason"))}}
	if meter := m.Text("meter"); meter != nil {
		a.Meter = *meter
	}
	delta, set, period := m.Whole("delta"), m.Whole("set"), m.Text("period")
	switch {
	case (delta == nil) == (set == nil):
		m.Wrong("delta", "Give either delta or set")
	case delta != nil && period != nil:
		m.Wrong("period", "A delta changes every period: give a period only with set")
	case delta != nil:
		a.Value = *delta
	case period == nil:
		m.Wrong("period", "Period is required with set")
	default:
		a.Set, a.Value = true, *set
		var err error
		if a.Period, err = core.ParsePeriod(*period); err != nil {
			m.Wrong("period", "Must be one of "+core.PeriodNames(core.Periods()))
		}
	}
	if of := m.Text("of"); of != nil {
		if a.Own = core.Origin(*of) == core.OfKey; !a.Own && core.Origin(*of) != core.OfPlan {
			m.Wrong("of", "Must be key for the counter of the key itself, or plan for the counter that decides under the plan")
		}
	}
	a.RequestID = m.requestID()
	return a
}

// adjust adjusts a counter, and answers with the usage afterwards.
func adjust[K, T any](of func(func(*call, K) error) handler,
	change func(*service.Service, context.Context, string, K, service.AdjustmentCall) (T, bool, error), view func(T) object) handler {
	return of(func(c *call, id K) error {
		a, err := decode(c, readAdjustment)
		if err != nil {
			return err
		}
		a.IP = c.config.ClientIP(c.r)
		u, _, err := change(c.svc, c.ctx(), c.account, id, a)
		return reply(view)(c, http.StatusOK, u, err)
	})
}

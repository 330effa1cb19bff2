package adminapi

import (
	"net/http"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// defaultThreshold is the default of over, in per cent of a limit.
const defaultThreshold = 80

// viewFullCounter returns the JSON form of a counter near a limit: its user and key, its fullest limit and all its limits.
func viewFullCounter(c service.FullCounter) object {
	k, pl := core.OrZero(c.Key), core.OrZero(c.Plan)
	return object{
		{"user_id", c.User.ID}, {"user_name", c.User.Name}, {"external_id", orNull(c.User.ExternalID)},
		{"key_id", orNull(k.ID)}, {"key_name", orNull(k.Name)},
		{"plan_id", orNull(pl.ID)}, {"plan_name", orNull(pl.Name)},
		{"meter", c.Meter}, {"period", c.Period}, {"max", c.Max}, {"used", c.Used},
		{"percentage_used", c.Percentage()}, {"reset_time", orNull(c.Window.End)}, {"of", c.Of},
		{"exhausts_at", orNull(c.ExhaustsAt[c.Fullest])}, {"denied", c.Denied}, {"limits", viewForecasts(c.Limits, c.ExhaustsAt)},
	}
}

// thresholds answers with a page of the counters that are near a limit, the fullest first.
func thresholds(c *call) error {
	q := c.query()
	over, p := q.whole("over", defaultThreshold), q.page()
	if q.err != nil {
		return q.err
	}
	t, err := c.svc.Thresholds(c.ctx(), c.account, over, q.text("meter"), p)
	if err != nil {
		return err
	}
	return c.write(http.StatusOK, object{{"data", viewEach(viewFullCounter, t.Counters)}, {"count", t.Total}, {"complete", t.Complete}})
}

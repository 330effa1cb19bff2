package adminapi

import (
	"net/http"

	"github.com/limitkeeper/limitkeeper/core/service"
)

// defaultThreshold is the share of a limit in per cent if the query has no over.
const defaultThreshold = 80

// viewFullCounter returns the JSON form of a counter near a limit: of its owner, its fullest limit and all its limits.
func viewFullCounter(c service.FullCounter) object {
	o := object{{"user_id", c.User.ID}, {"user_name", c.User.Name}, {"external_id", orNull(c.User.ExternalID)}}
	if c.Key != nil {
		o = append(o, field{"key_id", c.Key.ID}, field{"key_name", c.Key.Name})
	} else {
		o = append(o, field{"key_id", nil}, field{"key_name", nil})
	}
	if c.Plan != nil {
		o = append(o, field{"plan_id", c.Plan.ID}, field{"plan_name", c.Plan.Name})
	} else {
		o = append(o, field{"plan_id", nil}, field{"plan_name", nil})
	}
	return append(o, field{"meter", c.Meter}, field{"period", c.Period}, field{"max", c.Max}, field{"used", c.Used},
		field{"percentage_used", c.Percentage()}, field{"reset_time", orNull(c.Window.End)}, field{"of", c.Of}, field{"denied", c.Denied},
		field{"limits", viewLimits(c.Limits)})
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

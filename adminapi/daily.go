package adminapi

import (
	"cmp"
	"context"
	"net/http"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// The number of days or hours in an answer if the query has no from.
const (
	defaultDays  = 30
	defaultHours = 24
)

// date returns a parameter that is a day, or the default if the parameter is missing.
func (q *query) date(name string, missing core.Date) core.Date {
	text := q.text(name)
	if text == "" {
		return missing
	}
	d, err := core.ParseDate(text)
	if err != nil {
		q.wrong(name, "Must be a day like 2026-03-12")
	}
	return d
}

// hour returns a parameter that is an hour, or the default if the parameter is missing. A day stands for one of its hours.
func (q *query) hour(name string, ofDay int, missing core.Date) core.Date {
	text := q.text(name)
	if text == "" {
		return missing
	}
	if d, err := core.ParseDate(text); err == nil {
		return core.HourOf(d.Start()) + core.Date(ofDay)
	}
	h, err := core.ParseHour(text)
	if err != nil {
		q.wrong(name, "Must be an hour like 2026-03-12T13:00:00Z, or a day like 2026-03-12")
	}
	return h
}

// daysOf is a method of [service.Service] that returns the traffic on each day, or in each hour, from first to last.
type daysOf[K any] func(s *service.Service, ctx context.Context, account string, id K, first, last core.Date) ([]core.DayTotals, error)

// daily answers with the traffic of a meter on the days of the query, by default requests on the last 30 days.
func daily[K any](of func(func(*call, K) error) handler, days daysOf[K]) handler {
	return of(func(c *call, id K) error {
		q := c.query()
		last := q.date("to", c.svc.Today())
		return traffic(c, q, id, days, q.date("from", last-defaultDays+1), last, "date", "days")
	})
}

// hourly answers with the traffic of a meter in the hours of the query, by default requests in the last 24 hours.
func hourly[K any](of func(func(*call, K) error) handler, days daysOf[K]) handler {
	return of(func(c *call, id K) error {
		q := c.query()
		last := q.hour("to", 23, c.svc.ThisHour())
		return traffic(c, q, id, days, q.hour("from", 0, last-defaultHours+1), last, "hour", "hours")
	})
}

// traffic answers with the traffic of a meter from first to last, in a list with an item for each day or hour.
func traffic[K any](c *call, q *query, id K, days daysOf[K], first, last core.Date, item, list string) error {
	meter := cmp.Or(q.text("meter"), core.MeterRequests)
	if q.err == nil {
		q.err = c.svc.CheckMeter(c.ctx(), c.account, meter)
	}
	if q.err != nil {
		return q.err
	}
	totals, err := days(c.svc, c.ctx(), c.account, id, first, last)
	if err != nil {
		return err
	}
	sum, views := core.DayTotals{}, make([]object, len(totals))
	for i := range totals {
		sum.Add(&totals[i])
		views[i] = append(object{{item, totals[i].Date}}, viewDay(&totals[i], meter)...)
	}
	o := append(object{{"from", first}, {"to", last}, {"meter", meter}}, viewDay(&sum, meter)...)
	return c.writeData(http.StatusOK, append(o, field{list, views}))
}

// viewDay returns the members of the traffic of one meter. For requests they also have the numbers of requests, which differ from their cost.
func viewDay(d *core.DayTotals, meter string) object {
	t := d.Of(meter)
	o := object{{"allowed", t.Allowed}, {"denied", t.Denied}, {"adjusted", t.Adjusted}, {"used", t.Used()}}
	if meter == core.MeterRequests {
		n := d.Requests()
		o = append(o, field{"requests_allowed", n.Allowed}, field{"requests_denied", n.Denied})
	}
	return o
}

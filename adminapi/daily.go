package adminapi

import (
	"cmp"
	"context"
	"net/http"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// defaultDays is the number of days in an answer if the query has no from.
const defaultDays = 30

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

// daily answers with the traffic of a meter on the days of the query: by default that of requests on the last 30.
func daily[K any](of func(func(*call, K) error) handler,
	days func(s *service.Service, ctx context.Context, account string, id K, first, last core.Date) ([]core.DayTotals, error)) handler {
	return of(func(c *call, id K) error {
		q := c.query()
		last := q.date("to", c.svc.Today())
		first := q.date("from", last-defaultDays+1)
		meter := cmp.Or(q.text("meter"), core.MeterRequests)
		if !core.IsMeterName(meter) {
			q.wrong("meter", "Must be the name of a meter")
		}
		if q.err != nil {
			return q.err
		}
		list, err := days(c.svc, c.ctx(), c.account, id, first, last)
		if err != nil {
			return err
		}
		sum, views := core.DayTotals{}, make([]object, len(list))
		for i := range list {
			sum.Add(&list[i])
			views[i] = append(object{{"date", list[i].Date}}, viewDay(&list[i], meter)...)
		}
		o := append(object{{"from", first}, {"to", last}, {"meter", meter}}, viewDay(&sum, meter)...)
		return c.writeData(http.StatusOK, append(o, field{"days", views}))
	})
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

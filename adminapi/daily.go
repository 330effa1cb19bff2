package adminapi

import (
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

// daily answers with the traffic on the days of the query, by default the last 30.
func daily[K any](of func(func(*call, K) error) handler,
	days func(s *service.Service, ctx context.Context, account string, id K, first, last core.Date) ([]core.DayTotals, error)) handler {
	return of(func(c *call, id K) error {
		q := c.query()
		last := q.date("to", c.svc.Today())
		first := q.date("from", last-defaultDays+1)
		if q.err != nil {
			return q.err
		}
		list, err := days(c.svc, c.ctx(), c.account, id, first, last)
		if err != nil {
			return err
		}
		var sum core.Traffic
		for _, day := range list {
			sum = sum.Plus(day.Traffic)
		}
		return c.writeData(http.StatusOK, object{
			{"from", first}, {"to", last}, {"allowed", sum.Allowed}, {"denied", sum.Denied}, {"days", list}})
	})
}

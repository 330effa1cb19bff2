package adminapi

import (
	"net/http"

	"github.com/limitkeeper/limitkeeper/core"
)

// defaultDays is the number of days in an answer if the query has no from.
const defaultDays = 30

// daily is the JSON form of the traffic on some days.
type daily struct {
	From core.Date `json:"from"`
	To   core.Date `json:"to"`
	core.Traffic
	Days []core.DayTotals `json:"days"`
}

// date returns a parameter that is a day, or the default if the parameter is missing.
func (q *query) date(name string, missing core.Date) core.Date {
	text := q.text(name)
	if !q.values.Has(name) {
		return missing
	}
	d, err := core.ParseDate(text)
	if err != nil {
		q.wrong(name, "Must be a day like 2026-03-12")
	}
	return d
}

// dailyUsage answers with the days of the query, by default the last 30.
func dailyUsage(c *call, get func(first, last core.Date) ([]core.DayTotals, error)) error {
	q := c.query()
	last := q.date("to", c.svc.Today())
	first := q.date("from", last-defaultDays+1)
	if q.err != nil {
		return q.err
	}
	days, err := get(first, last)
	if err != nil {
		return err
	}
	d := daily{From: first, To: last, Days: days}
	for _, day := range days {
		d.Traffic = d.Plus(day.Traffic)
	}
	return c.write(http.StatusOK, single{d})
}

func keyDaily(c *call, id string) error {
	return dailyUsage(c, func(first, last core.Date) ([]core.DayTotals, error) {
		return c.svc.KeyDays(c.ctx(), c.account, id, first, last)
	})
}

func userDaily(c *call, id int64) error {
	return dailyUsage(c, func(first, last core.Date) ([]core.DayTotals, error) {
		return c.svc.UserDays(c.ctx(), c.account, id, first, last)
	})
}

func planDaily(c *call, id string) error {
	return dailyUsage(c, func(first, last core.Date) ([]core.DayTotals, error) {
		return c.svc.PlanDays(c.ctx(), c.account, id, first, last)
	})
}

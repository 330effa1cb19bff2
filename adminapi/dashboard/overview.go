package dashboard

import (
	"context"
	"fmt"
	"net/http"

	"github.com/limitkeeper/limitkeeper/core"
)

// nearest is how many counters the first page shows that are close to their limits.
const nearest = 10

// overviewView is what the first page shows.
type overviewView struct {
	Tiles   tiles
	Chart   *chart
	Closest closest
}

// tiles are the figures above everything else. They are live.
type tiles struct {
	Users, Keys, Plans int
	Today              core.Traffic
	Live               string // where they are asked for again
}

// closest are the counters that are the closest to their limits. They are live.
type closest struct {
	Rows []nearRow
	Live string // where they are asked for again
}

// nearRow is one of them.
type nearRow struct {
	*usage
	User *core.User
	Key  *core.Key // nil when it is the user's
	Plan *core.Plan
}

func overviewPage(q *request) error {
	if q.part("closest") {
		c, err := q.closest()
		if err != nil {
			return err
		}
		return q.renderPart("overview", "closest", c)
	}
	t, err := q.tiles()
	switch {
	case err != nil:
		return err
	case q.part("tiles"):
		return q.renderPart("overview", "tiles", t)
	case t.Users == 0 && t.Keys == 0 && t.Plans == 0:
		return q.redirect("start")
	}
	v := overviewView{Tiles: t}
	if v.Chart, err = q.chart("Requests of all users", q.accountDays); err != nil {
		return err
	}
	if v.Closest, err = q.closest(); err != nil {
		return err
	}
	return q.render(http.StatusOK, "overview", "Overview", v)
}

func (q *request) tiles() (t tiles, err error) {
	ctx, one := q.r.Context(), core.Page{Number: 1, Size: 1}
	if _, t.Users, err = q.svc.Users(ctx, q.account(), core.UserFilter{}, one); err != nil {
		return t, err
	}
	if _, t.Keys, err = q.svc.Keys(ctx, q.account(), core.KeyFilter{}, one); err != nil {
		return t, err
	}
	if _, t.Plans, err = q.svc.Plans(ctx, q.account(), one); err != nil {
		return t, err
	}
	days, err := q.accountDays(q.days()) // those of the chart, which are remembered
	if err != nil {
		return t, err
	}
	t.Today, t.Live = days[len(days)-1].Traffic, q.with("part", "tiles")
	return t, nil
}

func (q *request) closest() (c closest, err error) {
	list, err := cached(q, "closest "+q.account(), func(ctx context.Context) ([]core.NearLimit, error) {
		return q.svc.NearLimits(ctx, q.account(), nearest)
	})
	for _, n := range list {
		c.Rows = append(c.Rows, nearRow{newUsage(n.Plan, n.Usage), n.User, n.Key, n.Plan})
	}
	c.Live = q.with("part", "closest")
	return c, err
}

// accountDays returns the traffic of the account, as it was a moment ago: it sums over all
// users.
func (q *request) accountDays(first, last core.Date) ([]core.DayTotals, error) {
	name := fmt.Sprint("days ", q.account(), " ", first, " ", last)
	return cached(q, name, func(ctx context.Context) ([]core.DayTotals, error) {
		return q.svc.AccountDays(ctx, q.account(), first, last)
	})
}

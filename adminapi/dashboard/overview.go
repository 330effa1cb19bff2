package dashboard

import (
	"context"
	"fmt"
	"net/http"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// nearLimitRows is the number of counters near their limit on the overview.
const nearLimitRows = 10

type overviewView struct {
	Tiles     tiles
	Chart     *chart
	NearLimit nearLimit
}

// tiles are the figures at the top of the overview. They refresh themselves.
type tiles struct {
	Users, Keys, Plans int
	Today              core.Traffic
	Live               string // URL of the refresh
}

// nearLimit has the counters near their limit. They refresh themselves.
type nearLimit struct {
	Rows     []counterRow
	Complete bool   // false while the counters are being ranked: counters may be missing
	Live     string // URL of the refresh
}

func overviewPage(q *request) error {
	if q.part("near-limit") {
		n, err := q.nearLimit()
		if err != nil {
			return err
		}
		return q.renderPart("overview", "near-limit", n)
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
	if v.NearLimit, err = q.nearLimit(); err != nil {
		return err
	}
	return q.render(http.StatusOK, "overview", "Overview", v)
}

func (q *request) tiles() (t tiles, err error) {
	ctx := q.r.Context()
	if _, t.Users, err = q.svc.Users(ctx, q.account(), core.UserFilter{}, onlyOne); err != nil {
		return t, err
	}
	if _, t.Keys, err = q.svc.Keys(ctx, q.account(), core.KeyFilter{}, onlyOne); err != nil {
		return t, err
	}
	if _, t.Plans, err = q.svc.Plans(ctx, q.account(), onlyOne); err != nil {
		return t, err
	}
	days, err := q.accountDays(q.days()) // same cached value as the chart
	if err != nil {
		return t, err
	}
	t.Today, t.Live = days[len(days)-1].Traffic, q.with("part", "tiles")
	return t, nil
}

func (q *request) nearLimit() (v nearLimit, err error) {
	t, err := q.svc.Thresholds(q.r.Context(), q.account(), service.MinThreshold, "", core.Page{Number: 1, Size: nearLimitRows})
	for _, c := range t.Counters {
		v.Rows = append(v.Rows, counterRow{&usage{c.LimitUsage}, c.User, c.Key, c.Plan})
	}
	v.Complete, v.Live = t.Complete, q.with("part", "near-limit")
	return v, err
}

// accountDays returns the daily traffic of the account, cached because it sums over all users.
func (q *request) accountDays(first, last core.Date) ([]core.DayTotals, error) {
	name := fmt.Sprint("days ", q.account(), " ", first, " ", last)
	return cached(q, name, func(ctx context.Context) ([]core.DayTotals, error) {
		return q.svc.AccountDays(ctx, q.account(), first, last)
	})
}

package service

import (
	"context"
	"slices"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// forecast is the limits of a counter, for [Service.forecasts].
type forecast struct {
	deciding core.CounterID
	own      core.CounterID // counts for the limits of the key
	limits   []core.LimitUsage
}

// of returns the counter that counts for a limit.
func (f *forecast) of(u *core.LimitUsage) core.CounterID {
	if u.Of == core.OfKey {
		return f.own
	}
	return f.deciding
}

// forecasts returns when each limit is used up, see [core.LimitUsage.ExhaustsAt]. It reads the days of at most [core.ReadSize] counters, of which few limits need
// any.
func (s *Service) forecasts(ctx context.Context, list []forecast) ([][]time.Time, error) {
	now, ids := s.now(), []core.CounterID{}
	for i := range list {
		for j := range list[i].limits {
			u := &list[i].limits[j]
			if id := list[i].of(u); u.NeedsDays(now) && !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	}
	days := map[core.CounterID][]core.DayTotals{}
	if len(ids) > 0 {
		lists, err := s.store.DaysOf(ctx, ids, core.PaceFrom(now), core.DateOf(now))
		if err != nil {
			return nil, err
		}
		for i, id := range ids {
			days[id] = totalsOf(lists[i], id.KeyID == "")
		}
	}
	all := make([][]time.Time, len(list))
	for i := range list {
		for j := range list[i].limits {
			u := &list[i].limits[j]
			all[i] = append(all[i], u.ExhaustsAt(days[list[i].of(u)], now))
		}
	}
	return all, nil
}

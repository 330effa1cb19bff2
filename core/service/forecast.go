package service

import (
	"context"
	"slices"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// forecastInput has limits to forecast, and the counters of these limits.
type forecastInput struct {
	deciding core.CounterID
	own      core.CounterID // of the key: for its own limits
	limits   []core.LimitUsage
}

// counterOf returns the counter of a limit.
func (f *forecastInput) counterOf(u *core.LimitUsage) core.CounterID {
	if u.Of == core.OfKey {
		return f.own
	}
	return f.deciding
}

// forecasts returns the time at which each limit is used up, see [core.LimitUsage.ExhaustsAt]. The list has at most [core.ReadSize] counters. Only
// counters of limits that need days are read.
func (s *Service) forecasts(ctx context.Context, list []forecastInput) ([][]time.Time, error) {
	now, ids := s.now(), []core.CounterID{}
	for i := range list {
		for j := range list[i].limits {
			u := &list[i].limits[j]
			if id := list[i].counterOf(u); u.NeedsDays(now) && !slices.Contains(ids, id) {
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
			all[i] = append(all[i], u.ExhaustsAt(days[list[i].counterOf(u)], now))
		}
	}
	return all, nil
}

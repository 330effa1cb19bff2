package memstore

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// ranking is the ranking of an account.
type ranking struct {
	fills   map[core.CounterID][]core.Fill
	cut     bool      // counters were left out since wholeAt was forgotten
	wholeAt time.Time // see [core.Ranking.WholeAt]
}

// ranking returns the ranking of an account. It adds a missing ranking.
func (s *Store) ranking(account string) *ranking {
	if s.rankings[account] == nil {
		s.rankings[account] = &ranking{fills: map[core.CounterID][]core.Fill{}}
	}
	return s.rankings[account]
}

// Rank implements [core.Store].
func (s *Store) Rank(_ context.Context, account string, list []core.Ranked, _ bool) error {
	return s.locked(func() error {
		for _, c := range list {
			s.ranking(account).rank(c)
		}
		return nil
	})
}

func (r *ranking) rank(c core.Ranked) {
	fills := slices.Clone(c.Fills)
	if !c.Exact {
		fills = core.RaiseFills(r.fills[c.CounterID], c.Fills)
	}
	if r.fills[c.CounterID] = fills; len(fills) == 0 {
		delete(r.fills, c.CounterID)
	}
	if len(r.fills) > core.MaxRanked {
		r.cut = true
		all := r.sorted("")
		delete(r.fills, all[len(all)-1].CounterID)
	}
	r.checkCut()
}

// checkCut forgets the time of CompleteRanking if counters were left out and fewer than half of MaxRanked are left.
func (r *ranking) checkCut() {
	if r.cut && len(r.fills) < core.MaxRanked/2 {
		r.cut, r.wholeAt = false, time.Time{}
	}
}

// sorted returns the counters with a fill of a meter, the fullest first.
func (r *ranking) sorted(meter string) (list []core.Ranked) {
	for id, fills := range maps.All(r.fills) {
		if core.HighestFill(fills, meter) > 0 {
			list = append(list, core.Ranked{CounterID: id, Fills: slices.Clone(fills)})
		}
	}
	slices.SortFunc(list, func(a, b core.Ranked) int {
		return cmp.Or(cmp.Compare(core.HighestFill(b.Fills, meter), core.HighestFill(a.Fills, meter)), a.CounterID.Compare(b.CounterID))
	})
	return list
}

// Ranking implements [core.Store].
func (s *Store) Ranking(_ context.Context, account string, q core.RankingQuery, p core.Page) (page core.Ranking, err error) {
	err = s.locked(func() error {
		r := s.ranking(account)
		for id, fills := range r.fills {
			if r.fills[id] = core.LiveFills(fills, q.At); len(r.fills[id]) == 0 {
				delete(r.fills, id)
			}
		}
		r.checkCut()
		list := slices.DeleteFunc(r.sorted(q.Meter), func(c core.Ranked) bool { return core.HighestFill(c.Fills, q.Meter) < q.From })
		page.Total, page.WholeAt = len(list), r.wholeAt
		from := min(p.Offset(), len(list))
		page.Counters = list[from:min(from+p.Size, len(list))]
		return nil
	})
	return page, err
}

// CompleteRanking implements [core.Store].
func (s *Store) CompleteRanking(_ context.Context, account string, at time.Time) error {
	return s.locked(func() error {
		r := s.ranking(account)
		r.wholeAt = normalTime(at)
		return nil
	})
}

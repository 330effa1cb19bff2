package service

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// The bounds of the argument over of [Service.Thresholds], in per cent of a limit.
const (
	MinThreshold = core.RankFrom
	MaxThreshold = 1000
)

// FullCounter is a counter that is near a limit, with its user and key.
type FullCounter struct {
	id   core.CounterID
	User *core.User // in the cache: do not change it
	Key  *core.Key  // nil for the counter of a user, which its keys without a plan of their own share
	Plan *core.Plan // in force

	core.LimitUsage                   // the fullest limit of the meter in the query
	Limits          []core.LimitUsage // all limits of the counter, in the order of the terms
	Fullest         int               // the index of the fullest limit in Limits
	ExhaustsAt      []time.Time       // for each of Limits, the time at which it is used up at the present pace; zero if not before its reset

	// Denied is the number of denied requests of the key or user, on the days of the window of the fullest limit.
	Denied int64
}

// Thresholds is a page of the counters that are at or over a share of one of their limits.
type Thresholds struct {
	Counters []FullCounter // fullest first, by whole per cent
	Total    int           // on all pages, at most [core.MaxRanked]

	// Complete is false while the counters of the account are being ranked: some may be missing, and Total may be wrong.
	Complete bool
}

// The bounds of the work of one call.
const (
	maxDueAtOnce  = 100 // due counters that are ranked before the first read
	maxCorrecting = 10  // reads of the page: a page with outdated fills is corrected and read again
)

// Thresholds returns a page of the counters of an account that have used over per cent or more of one of their limits. Limits of all meters count, or
// only limits of the given meter. The figures are of the time of the call.
func (s *Service) Thresholds(ctx context.Context, account string, over int64, meter string, p core.Page) (t Thresholds, err error) {
	if over < MinThreshold || over > MaxThreshold {
		return t, core.Invalid("over", fmt.Sprintf("Over must be a whole number of per cent from %d to %d", MinThreshold, MaxThreshold))
	}
	if err := s.CheckMeter(ctx, account, meter); err != nil {
		return t, err
	}
	more, err := s.rankDue(ctx, account, maxDueAtOnce, core.ReadSize)
	if err != nil {
		return t, err
	}
	if err := s.rankSmall(ctx, account); err != nil {
		return t, err
	}
	q := core.RankingQuery{Meter: meter, From: over, At: s.now()}
	for range maxCorrecting {
		r, err := s.store.Ranking(ctx, account, q, p)
		if err != nil {
			return t, err
		}
		full, fallen, err := s.fullCounters(ctx, &q, r.Counters)
		if err != nil {
			return t, err
		}
		t = Thresholds{full, r.Total - (len(r.Counters) - len(full)), !r.WholeAt.IsZero() && !r.Behind && !more && len(fallen) == 0}
		if len(fallen) == 0 && !r.Behind {
			break
		}
		if err := s.rankExactly(ctx, account, fallen); err != nil {
			return t, err
		}
	}
	slices.SortStableFunc(t.Counters, func(a, b FullCounter) int { return cmp.Compare(b.Share(), a.Share()) })
	if err := s.forecastFull(ctx, t.Counters); err != nil {
		return t, err
	}
	return t, s.countDenied(ctx, t.Counters)
}

// rankSmall ranks the counters of an account whose ranking is not whole, if the account has at most core.ReadSize users and keys. RankAccounts ranks
// the counters of a larger account.
func (s *Service) rankSmall(ctx context.Context, account string) error {
	r, err := s.store.Ranking(ctx, account, core.RankingQuery{From: core.RankFrom, At: s.now()}, core.Page{Number: 1})
	if err != nil || !r.WholeAt.IsZero() {
		return err
	}
	one := core.Page{Number: 1, Size: 1}
	_, users, err := s.store.Users(ctx, account, core.UserFilter{}, one)
	if err != nil || users > core.ReadSize {
		return err
	}
	_, keys, err := s.store.Keys(ctx, account, core.KeyFilter{}, one)
	if err != nil || users+keys > core.ReadSize {
		return err
	}
	return s.rankAccount(ctx, account, noRest)
}

// fullCounters reads the counters of a page of a ranking. It returns the counters that reach the share of the query, and the counters whose highest fill
// is lower than in the ranking.
func (s *Service) fullCounters(ctx context.Context, q *core.RankingQuery, page []core.Ranked) (full []FullCounter, fallen []core.CounterID, err error) {
	ids := core.RankedIDs(page)
	counters, err := s.counterTermsOf(ctx, ids)
	if err != nil {
		return nil, nil, err
	}
	usages, err := s.usagesOf(ctx, counters)
	if err != nil {
		return nil, nil, err
	}
	highest := map[core.CounterID]int64{} // 0 for deleted keys and users
	for i, c := range counters {
		h := core.HighestFill(core.FillsOf(usages[i], c.user.Anchors), q.Meter)
		if highest[c.CounterID] = h; h >= q.From {
			n := fullest(usages[i], q.Meter)
			full = append(full, FullCounter{id: c.CounterID, User: c.user, Key: c.key, Plan: c.plan, LimitUsage: usages[i][n], Limits: usages[i], Fullest: n})
		}
	}
	for i, c := range page {
		if highest[ids[i]] < core.HighestFill(c.Fills, q.Meter) {
			fallen = append(fallen, ids[i])
		}
	}
	return full, fallen, nil
}

// fullest returns the index of the first limit with the highest share among the limits of a meter, or of all meters for "".
func fullest(limits []core.LimitUsage, meter string) int {
	highest := -1
	for i := range limits {
		if (meter == "" || limits[i].Meter == meter) && (highest < 0 || limits[i].Share() > limits[highest].Share()) {
			highest = i
		}
	}
	return highest
}

// forecastFull sets ExhaustsAt of each counter. It reads the days of all counters at once.
func (s *Service) forecastFull(ctx context.Context, list []FullCounter) error {
	forecasts := make([]forecastInput, len(list))
	for i := range list {
		forecasts[i] = forecastInput{list[i].id, list[i].id, list[i].Limits}
	}
	all, err := s.forecasts(ctx, forecasts)
	for i := range all {
		list[i].ExhaustsAt = all[i]
	}
	return err
}

// countDenied sets Denied of each counter.
func (s *Service) countDenied(ctx context.Context, list []FullCounter) error {
	return s.eachAtOnce(ctx, len(list), func(ctx context.Context, i int) error {
		c, today := &list[i], s.Today()
		of := core.DaysFilter{Account: c.id.Account, KeyID: c.id.KeyID, UserID: c.id.UserID}
		first := max(core.DateOf(c.Window.Start), today-core.DaysKept+1)
		days, err := s.store.Days(ctx, of, min(first, today), today)
		for i := range days {
			c.Denied = core.AddSaturating(c.Denied, days[i].Requests().Denied)
		}
		return err
	})
}

package storetest

import (
	"context"
	"slices"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var brokenRankings = []defect{
	{name: "only raises fills", caughtBy: "ranking/random",
		open: rankingEdited(func(c *core.Ranked) { c.Exact = false }, nil)},
	{name: "lowers fills", caughtBy: "ranking/random",
		open: rankingEdited(func(c *core.Ranked) { c.Exact = true }, nil)},
	{name: "keeps fills of windows that have ended", caughtBy: "ranking/random",
		open: wrapped(func(s core.Store) core.Store { return endless{s} })},
	{name: "drops fills before their windows end", caughtBy: "ranking/random",
		open: rankingEdited(func(c *core.Ranked) {
			c.Fills = slices.Clone(c.Fills)
			for i := range c.Fills {
				c.Fills[i].End = min(c.Fills[i].End, noon.Unix()+3600)
			}
		}, nil)},
	{name: "ranks by the fills of all meters", caughtBy: "ranking/random",
		open: rankingEdited(nil, func(q *core.RankingQuery) { q.Meter = "" })},
	{name: "lists counters below the share", caughtBy: "ranking/random",
		open: rankingEdited(nil, func(q *core.RankingQuery) { q.From-- })},
	{name: "lists the least full counters first", caughtBy: "ranking/random",
		open: wrapped(func(s core.Store) core.Store { return leastFirst{s} })},
	{name: "counts only the counters on the page", caughtBy: "ranking/random",
		open: wrapped(func(s core.Store) core.Store { return countsPage{s} })},
	{name: "forgets the time of CompleteRanking", caughtBy: "ranking/random",
		open: wrapped(func(s core.Store) core.Store { return neverWhole{s} })},
	{name: "ranks all accounts together", caughtBy: "ranking/accounts",
		open: wrapped(func(s core.Store) core.Store { return oneRanking{s} })},
	{name: "loses changes with soon", caughtBy: "ranking/soon",
		open: wrapped(func(s core.Store) core.Store { return losesSoon{s} })},
}

// rankingEdits changes the counters in calls of Rank, and the queries of Ranking.
type rankingEdits struct {
	core.Store
	change func(*core.Ranked)
	ask    func(*core.RankingQuery)
}

func rankingEdited(change func(*core.Ranked), ask func(*core.RankingQuery)) func() Opened {
	return wrapped(func(s core.Store) core.Store { return rankingEdits{s, change, ask} })
}

func (s rankingEdits) Rank(ctx context.Context, account string, list []core.Ranked, soon bool) error {
	list = slices.Clone(list)
	for i := range list {
		if s.change != nil {
			s.change(&list[i])
		}
	}
	return s.Store.Rank(ctx, account, list, soon)
}

func (s rankingEdits) Ranking(ctx context.Context, account string, q core.RankingQuery, p core.Page) (core.Ranking, error) {
	if s.ask != nil {
		s.ask(&q)
	}
	return s.Store.Ranking(ctx, account, q, p)
}

type endless struct{ core.Store }

func (s endless) Ranking(ctx context.Context, account string, q core.RankingQuery, p core.Page) (core.Ranking, error) {
	q.At = noon
	return s.Store.Ranking(ctx, account, q, p)
}

type leastFirst struct{ core.Store }

func (s leastFirst) Ranking(ctx context.Context, account string, q core.RankingQuery, p core.Page) (core.Ranking, error) {
	r, err := s.Store.Ranking(ctx, account, q, p)
	slices.Reverse(r.Counters)
	return r, err
}

type countsPage struct{ core.Store }

func (s countsPage) Ranking(ctx context.Context, account string, q core.RankingQuery, p core.Page) (core.Ranking, error) {
	r, err := s.Store.Ranking(ctx, account, q, p)
	r.Total = len(r.Counters)
	return r, err
}

type neverWhole struct{ core.Store }

func (neverWhole) CompleteRanking(context.Context, string, time.Time) error { return nil }

type oneRanking struct{ core.Store }

func (s oneRanking) Rank(ctx context.Context, _ string, list []core.Ranked, soon bool) error {
	return s.Store.Rank(ctx, "", list, soon)
}

func (s oneRanking) Ranking(ctx context.Context, _ string, q core.RankingQuery, p core.Page) (core.Ranking, error) {
	return s.Store.Ranking(ctx, "", q, p)
}

type losesSoon struct{ core.Store }

func (s losesSoon) Rank(ctx context.Context, account string, list []core.Ranked, soon bool) error {
	if soon {
		return nil
	}
	return s.Store.Rank(ctx, account, list, soon)
}

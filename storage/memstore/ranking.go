package memstore

import (
	"context"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// Rank implements [core.Store].
func (s *Store) Rank(_ context.Context, account string, list []core.Ranked, _ bool) error {
	return s.locked(func() error {
		s.rankings.Rank(account, list)
		return nil
	})
}

// Ranking implements [core.Store].
func (s *Store) Ranking(_ context.Context, account string, q core.RankingQuery, p core.Page) (page core.Ranking, err error) {
	err = s.locked(func() error {
		page = s.rankings.Page(account, q, p)
		return nil
	})
	return page, err
}

// CompleteRanking implements [core.Store].
func (s *Store) CompleteRanking(_ context.Context, account string, at time.Time) error {
	return s.locked(func() error {
		s.rankings.Complete(account, at)
		return nil
	})
}

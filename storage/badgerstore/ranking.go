package badgerstore

import (
	"context"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// Rank implements [core.Store].
func (s *Store) Rank(_ context.Context, account string, list []core.Ranked, _ bool) error {
	return s.entered(func() { s.rankings.Rank(account, list) })
}

// Ranking implements [core.Store].
func (s *Store) Ranking(_ context.Context, account string, q core.RankingQuery, p core.Page) (page core.Ranking, err error) {
	err = s.entered(func() { page = s.rankings.Page(account, q, p) })
	return page, err
}

// CompleteRanking implements [core.Store].
func (s *Store) CompleteRanking(_ context.Context, account string, at time.Time) error {
	return s.entered(func() { s.rankings.Complete(account, at) })
}

// entered runs fn between enter and leave.
func (s *Store) entered(fn func()) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	fn()
	return nil
}

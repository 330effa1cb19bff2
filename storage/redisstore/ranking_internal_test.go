package redisstore

import (
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// rankUsers ranks the counters of users, each 1 per cent higher than the previous counter. A percent of 0 removes the counters.
func (m *moveTest) rankUsers(percent int64, soon bool, users ...int64) {
	m.t.Helper()
	for i, user := range users {
		c := core.Ranked{CounterID: core.CounterID{Account: moveAccount, UserID: user}, Exact: percent == 0}
		if percent > 0 {
			c.Fills = []core.Fill{{Meter: core.MeterRequests, Period: core.Month, Percent: percent + int64(i), End: core.NoEnd}}
		}
		if err := m.s.Rank(m.t.Context(), moveAccount, []core.Ranked{c}, soon); err != nil {
			m.t.Fatalf("Rank: %v", err)
		}
	}
}

// wantRanking fails the test unless so many counters are in the ranking, and it is whole or not, within a few seconds.
func (m *moveTest) wantRanking(total int, whole bool) {
	m.t.Helper()
	for begun := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		r, err := m.s.Ranking(m.t.Context(), moveAccount, core.RankingQuery{From: core.RankFrom, At: noon}, core.Page{Number: 1})
		if err == nil && r.Total == total && !r.WholeAt.IsZero() == whole {
			return
		}
		if time.Since(begun) > 10*time.Second {
			m.t.Fatalf("got %d counters, whole at %v, %v; want %d, whole %v", r.Total, r.WholeAt, err, total, whole)
		}
	}
}

func (m *moveTest) completeRanking() {
	m.t.Helper()
	if err := m.s.CompleteRanking(m.t.Context(), moveAccount, noon); err != nil {
		m.t.Fatalf("CompleteRanking: %v", err)
	}
}

// A ranking that has left out counters, also while all counters were ranked, forgets that it was whole when less than half are left.
func TestRankingIsCut(t *testing.T) {
	m := newMoveTest(t)
	m.s.maxRanked = 4
	m.rankUsers(60, false, 1, 2, 3, 4, 5, 6)
	m.completeRanking()
	m.rankUsers(0, false, 5, 6)
	m.wantRanking(2, true)
	m.rankUsers(0, false, 4)
	m.wantRanking(1, false)
	m.completeRanking()
	m.rankUsers(0, false, 3)
	m.wantRanking(0, true)
}

// Changes wait while the store refuses calls after a loss, and while Redis does not answer.
func TestRankingAfterAnOutage(t *testing.T) {
	m := newMoveTest(t)
	m.completeRanking()
	m.rankUsers(60, true, 1)
	m.s.refused.Store(new(error(core.ErrUnavailable)))
	time.Sleep(2 * rankEvery)
	m.s.refused.Store(nil)
	m.rankUsers(60, true, 2)
	m.wantRanking(2, true)

	m.rankUsers(60, true, 3)
	m.server.Pause()
	time.Sleep(m.s.o.Timeout + 2*rankEvery)
	m.server.Resume()
	m.wantRanking(3, true)
	m.rankUsers(60, true, 4)
	m.wantRanking(4, true)
}

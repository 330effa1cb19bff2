package ranking

import (
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// After counters were left out, also while all counters were being ranked, a ranking forgets that it was complete as soon as fewer than half are left.
func TestRankingIsCut(t *testing.T) {
	r, now := newRanking(4), time.Unix(1_800_000_000, 0)
	rank := func(user, percent int64) {
		c := core.Ranked{CounterID: core.CounterID{UserID: user}, Exact: true}
		if percent > 0 {
			c.Fills = []core.Fill{{Meter: core.MeterRequests, Period: core.Month, Percent: percent, End: core.NoEnd}}
		}
		r.rankLocked(&c)
	}
	for user := range int64(6) {
		rank(1+user, 60+user)
	}
	r.completeLocked(now)
	for user := int64(6); user > 3; user-- {
		if r.wholeAt.IsZero() {
			t.Errorf("incomplete before user %d leaves", user)
		}
		rank(user, 0)
	}
	if got := r.lists[""].len(); got != 1 || !r.wholeAt.IsZero() {
		t.Errorf("%d counters are left, complete at %v; want 1, and an incomplete ranking", got, r.wholeAt)
	}
	r.completeLocked(now)
	if rank(3, 0); r.wholeAt.IsZero() {
		t.Error("a ranking that has left out no counter was forgotten")
	}
}

package redisstore_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// callCounts counts the answered requests of a key, and the unanswered requests that may be counted. A
// request that was not sent, because the server was away, is in neither.
type callCounts struct{ answered, unknown int }

func countCalls(w *world, calls []call) []callCounts {
	all := make([]callCounts, len(w.keys))
	for _, c := range calls {
		switch {
		case c.err == nil:
			all[c.key].answered++
		case !strings.Contains(c.err.Error(), "is away"):
			all[c.key].unknown++
		}
	}
	return all
}

// checkBounds fails the test unless the count of each key is between answered and answered plus unknown
// requests. History and days must agree with the counter, and a user's counter with the sum of its keys.
func (w *world) checkBounds(t testing.TB, calls []call) {
	t.Helper()
	w.checkNoMore(t, calls)
	w.checkAnswered(t, calls)
}

// checkAnswered fails the test if a key has counted fewer requests than were answered.
func (w *world) checkAnswered(t testing.TB, calls []call) {
	t.Helper()
	for i, c := range countCalls(w, calls) {
		if used := w.used(t, w.keys[i].ID, 0); used < c.answered {
			t.Errorf("%s has counted %d requests, want %d at least: that many were answered", w.keys[i].ID, used, c.answered)
		}
	}
}

// checkNoMore is checkBounds without the lower bound, for servers that may lose writes.
func (w *world) checkNoMore(t testing.TB, calls []call) {
	t.Helper()
	sums := map[int64]int{}
	for i, c := range countCalls(w, calls) {
		k := &w.keys[i]
		used := w.used(t, k.ID, 0)
		if used > c.answered+c.unknown {
			t.Errorf("%s has counted %d requests, want at most the %d answered and %d unknown", k.ID, used, c.answered, c.unknown)
		}
		if n := w.entries(t, k.ID, 0); n != used {
			t.Errorf("the history of %s has %d requests, its counter %d", k.ID, n, used)
		}
		if n := w.onDays(t, core.DaysFilter{Account: w.account, KeyID: k.ID}); n != used {
			t.Errorf("%s was allowed %d on its days, its counter has %d", k.ID, n, used)
		}
		sums[k.UserID] += used
	}
	for user, sum := range sums {
		if used := w.used(t, "", user); used != sum {
			t.Errorf("user %d has counted %d requests, its keys %d", user, used, sum)
		}
		if n := w.entries(t, "", user); n != sum {
			t.Errorf("the history of user %d has %d requests, its keys have counted %d", user, n, sum)
		}
		if n := w.onDays(t, core.DaysFilter{Account: w.account, UserID: user}); n != sum {
			t.Errorf("user %d was allowed %d on its days, its keys have counted %d", user, n, sum)
		}
	}
}

// repeat repeats each unanswered request that has an id until it is answered. It returns all calls with
// their final results.
func (w *world) repeat(t testing.TB, calls []call) []call {
	t.Helper()
	for i := range calls {
		for begun := time.Now(); calls[i].id != "" && calls[i].err != nil; {
			_, calls[i].err = w.s.Consume(t.Context(), consumption(&w.keys[calls[i].key], calls[i].id, true))
			if calls[i].err != nil && time.Since(begun) > 20*time.Second {
				t.Fatalf("request %s: %v after %v", calls[i].id, calls[i].err, time.Since(begun))
			}
		}
	}
	return calls
}

// checkExact repeats unanswered requests. It fails the test unless each key with request ids has counted
// each id once, and the other keys are within their bounds.
func (w *world) checkExact(t testing.TB, calls []call) {
	t.Helper()
	before := len(filterCalls(calls, failed))
	calls = w.repeat(t, calls)
	t.Logf("%d requests, %d without an answer", len(calls), before)
	w.checkBounds(t, calls)
	for i, c := range countCalls(w, calls) {
		if i%2 == 0 && w.used(t, w.keys[i].ID, 0) != c.answered {
			t.Errorf("%s has counted %d requests, want %d: each with its id once", w.keys[i].ID, w.used(t, w.keys[i].ID, 0), c.answered)
		}
	}
}

// used returns the count of a key, or of a user.
func (w *world) used(t testing.TB, key string, user int64) int {
	t.Helper()
	var cs []core.Counter
	w.read(t, func() (err error) {
		cs, err = w.s.Counters(t.Context(), []core.CounterID{{Account: w.account, KeyID: key, UserID: user}})
		return err
	})
	return int(cs[0].Usage(core.MeterRequests, core.Year, nil, time.Now()).Used)
}

// onDays returns the sum of allowed requests over all days.
func (w *world) onDays(t testing.TB, of core.DaysFilter) (sum int) {
	t.Helper()
	today := core.DateOf(time.Now())
	w.read(t, func() error {
		days, err := w.s.Days(t.Context(), of, today-1, today)
		sum = 0
		for _, d := range days {
			sum += int(d.Allowed)
		}
		return err
	})
	return sum
}

// entries returns the number of requests in the history of a key, or of a user.
func (w *world) entries(t testing.TB, key string, user int64) (n int) {
	t.Helper()
	id := core.CounterID{Account: w.account, KeyID: key, UserID: user}
	w.read(t, func() (err error) {
		_, n, err = w.s.History(t.Context(), id, time.Time{}, core.Page{Number: 1, Size: 1})
		return err
	})
	return n
}

// read retries a read. The first may find a cut connection.
func (w *world) read(t testing.TB, fn func() error) {
	t.Helper()
	until(t, "to read", func() bool {
		err := fn()
		if err != nil && !errors.Is(err, core.ErrUnavailable) {
			t.Fatalf("read: %v", err)
		}
		return err == nil
	})
}

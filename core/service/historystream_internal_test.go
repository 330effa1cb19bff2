package service

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// oneHistory is a store whose histories have n entries, the newest one from the time at.
type oneHistory struct {
	core.Store
	n  int
	at time.Time
}

func (s oneHistory) History(_ context.Context, of core.CounterID, _ time.Time, p core.Page) ([]core.Entry, int, error) {
	list := make([]core.Entry, min(p.Size, max(0, s.n-p.Offset())))
	for i := range list {
		list[i] = core.Entry{UserID: of.UserID, At: s.at.Add(-time.Duration(p.Offset()+i) * time.Nanosecond)}
	}
	return list, s.n, nil
}

// A stream that has begun goes on when too many large queries of its account wait. A stream that has not begun is refused.
func TestStreamHistoryWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(oneHistory{n: 3_000, at: time.Now()}, Config{Clock: time.Now})
		fill := func() (release func()) { // as many large queries as may wait
			ctx, cancel := context.WithCancel(t.Context())
			unlock, err := s.largeQueries.Lock(ctx, "a")
			if err != nil {
				t.Fatal(err)
			}
			for range maxWaitingQueries {
				go func() { _, _ = s.largeQueries.Lock(ctx, "a") }()
			}
			synctest.Wait()
			return func() { cancel(); synctest.Wait(); unlock() }
		}
		steps := 0
		read := func(list []core.Entry) error {
			if steps++; steps == 1 {
				time.AfterFunc(time.Minute, fill())
			}
			return nil
		}
		if err := s.StreamHistory(t.Context(), "a", HistoryFilter{UserID: 1}, read); err != nil || steps != 3 {
			t.Errorf("got %d steps, %v, want 3", steps, err)
		}
		defer fill()()
		if err := s.StreamHistory(t.Context(), "a", HistoryFilter{UserID: 1}, read); !errors.Is(err, ErrTooManyRequests) || steps != 3 {
			t.Errorf("got %v, want %v", err, ErrTooManyRequests)
		}
	})
}

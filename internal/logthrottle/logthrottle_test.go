package logthrottle

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Of many lines in a minute 60 are admitted, and the next one tells how many were not. When this fails, the log fills the
// disk while the store is unavailable, or does not tell how many requests have failed.
func TestAdmit(t *testing.T) {
	var th Throttle
	now := time.Unix(1_800_000_000, 0)
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for range 1000 {
		wg.Go(func() {
			if _, ok := th.Admit(now); ok {
				admitted.Add(1)
			}
		})
	}
	wg.Wait()
	if got := admitted.Load(); got != LinesPerMinute {
		t.Errorf("admitted %d lines in a minute, want %d", got, LinesPerMinute)
	}
	if _, ok := th.Admit(now.Add(time.Minute - 1)); ok {
		t.Error("admitted another line before the minute was over")
	}
	if n, ok := th.Admit(now.Add(time.Minute)); !ok || n != 1001-LinesPerMinute {
		t.Errorf("after a minute: got %t and %d suppressed, want a line with %d", ok, n, 1001-LinesPerMinute)
	}
	if n, ok := th.Admit(now.Add(-time.Hour)); !ok || n != 0 {
		t.Errorf("after the clock stepped back: got %t and %d suppressed, want a line with 0", ok, n)
	}
}

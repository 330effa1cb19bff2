package redisstore_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// watcher is a [core.Watcher] that records its calls.
type watcher struct {
	mu      sync.Mutex
	changes []receivedChange
	lost    int
	until   time.Time // end of the trust
}

type receivedChange struct {
	core.Change
	at time.Time
}

func (w *watcher) Changed(c core.Change) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changes = append(w.changes, receivedChange{c, time.Now()})
}

func (w *watcher) RenewLease(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.until = time.Now().Add(d)
}

func (w *watcher) ChangesMissed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lost++
}

// losses returns the number of calls to Lost.
func (w *watcher) losses() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost
}

func (w *watcher) trusts() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Now().Before(w.until)
}

// find returns when the first report of a change after a time arrived.
func (w *watcher) find(c core.Change, after time.Time) (time.Time, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.IndexFunc(w.changes, func(t receivedChange) bool { return t.Change == c && t.at.After(after) })
	if i < 0 {
		return time.Time{}, false
	}
	return w.changes[i].at, true
}

// awaitChange waits for the report of a change after from, and returns the delay.
func (w *watcher) awaitChange(t testing.TB, c core.Change, from time.Time) (lag time.Duration) {
	t.Helper()
	until(t, "to be told of a change", func() bool {
		at, ok := w.find(c, from)
		lag = at.Sub(from)
		return ok
	})
	return lag
}

func (w *watcher) awaitTrust(t testing.TB) {
	t.Helper()
	until(t, "trust", w.trusts)
}

// until waits for a condition. After a minute it fails the test.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for begun := time.Now(); !ok(); time.Sleep(time.Millisecond) {
		if time.Since(begun) > time.Minute {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}

var _ core.Watcher = (*watcher)(nil)

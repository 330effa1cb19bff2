package badgerstore

import (
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
)

// wantClosing closes a store while a method waits. It fails unless that method, a new call and Close end at once. It
// returns the error of Close.
func wantClosing(t *testing.T, s *Store, waiting chan error) error {
	t.Helper()
	closed, answered := make(chan error, 1), make(chan error, 1)
	go func() { closed <- s.Close() }()
	waitUntil(t, "Close waits or has ended", func() bool {
		if !s.life.TryRLock() {
			return true
		}
		s.life.RUnlock()
		return len(closed) > 0
	})
	go func() {
		_, err := s.AccountByName(t.Context(), acct)
		answered <- err
	}()
	waitUntil(t, "a new call is answered", func() bool { return len(answered) > 0 })
	if err := <-answered; !isUnavailable(err) {
		t.Errorf("AccountByName: got error %v, want %v", err, core.ErrUnavailable)
	}
	waitUntil(t, "the method that waits ends", func() bool { return len(waiting) > 0 })
	if err := <-waiting; !isUnavailable(err) {
		t.Errorf("the method that waits: got error %v, want %v", err, core.ErrUnavailable)
	}
	waitUntil(t, "Close ends", func() bool { return len(closed) > 0 })
	return <-closed
}

// TestCloseEndsWaiting: Close ends the methods that wait for room, and refuses new calls at once. A failure means that
// a reload of the server hangs for 20 s, with all requests.
func TestCloseEndsWaiting(t *testing.T) {
	s := openAlone(t, t.TempDir(), quiet)
	known(t, s, "key")
	s.checkpointer.maxPending.Store(0)
	waiting := make(chan error, 1)
	go func() {
		_, err := s.Consume(t.Context(), request("key", 1, 1, noon))
		waiting <- err
	}()
	waitUntil(t, "a request waits", func() bool { return s.Stats().Waits > 0 })
	if err := wantClosing(t, s, waiting); err != nil {
		t.Errorf("Close: %v", err)
	}
}

package redisstore

import (
	"context"
	"errors"
	"sync"
	"testing"
)

// A keyedMutex admits one holder for each name. A waiter gives up when its context ends. Unused names take
// no memory.
func TestKeyedMutex(t *testing.T) {
	var l keyedMutex
	unlock, err := l.lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if other, err := l.lock(t.Context(), "b"); err != nil {
		t.Fatal(err)
	} else {
		other()
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.lock(gone, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("a lock that another holds: %v, want that the context has ended", err)
	}
	var group sync.WaitGroup
	n := 0
	for range 50 {
		group.Go(func() {
			unlock, err := l.lock(t.Context(), "a")
			if err != nil {
				t.Error(err)
				return
			}
			defer unlock()
			n++ // a second holder is a data race
		})
	}
	unlock()
	group.Wait()
	if n != 50 || len(l.entries) != 0 {
		t.Errorf("%d of 50 had the lock, and %d locks are left; want none", n, len(l.entries))
	}
}

package badgerstore

import (
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// lockBadger takes the lock that Badger holds while it creates a memtable. All reads of Badger wait until the test
// calls unlock.
func lockBadger(s *Store) (unlock func()) {
	lock := (*sync.RWMutex)(reflect.ValueOf(s.db.DB).Elem().FieldByName("lock").Addr().UnsafePointer())
	lock.Lock()
	return lock.Unlock
}

// running reports whether one goroutine has all these functions in its stack.
func running(functions ...string) bool {
	buf := make([]byte, 1<<20)
	for stack := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		all := true
		for _, function := range functions {
			all = all && strings.Contains(stack, function+"(")
		}
		if all {
			return true
		}
	}
	return false
}

// withHistory opens a store with many segments whose events are in tables.
func withHistory(t *testing.T) *Store {
	t.Helper()
	s := openAlone(t, t.TempDir(), smallSegments)
	known(t, s, "key", "other")
	consumeN(t, s, "key", 500)
	flushCheckpoint(t, s)
	return s
}

// TestRemoveHistoryWhileBadgerWaits: while Badger waits for room, readers of counters and an image wait for Badger. The store still removes history. A failure means that all of them hang.
func TestRemoveHistoryWhileBadgerWaits(t *testing.T) {
	s := withHistory(t)
	of := keyRef(t, s, "other")
	unlock := lockBadger(s)
	var group sync.WaitGroup
	defer group.Wait()
	defer unlock()
	group.Go(func() { _, _ = s.peek([]ref{of}) })
	waitUntil(t, "a reader waits", func() bool { return running("viewCounters", "getMemTables") })
	group.Go(func() { _ = s.writeImage(atOnce) })
	waitUntil(t, "the image waits", func() bool { return running("writeImage", "getMemTables") })
	before := len(s.events.Segments())
	made := make(chan error)
	group.Go(func() {
		s.space.Space = func(string) (uint64, uint64, error) { return 0, 1 << 40, nil }
		made <- s.removeHistory(time.Now().Add(72 * time.Hour))
	})
	select {
	case err := <-made:
		if n := len(s.events.Segments()); err != nil || n >= before {
			t.Errorf("removeHistory: got %d segments of %d, %v", n, before, err)
		}
	case <-time.After(patience):
		t.Error("removeHistory waits for readers that wait for room")
		go func() { <-made }()
	}
}

// TestReaderKeepsSegments: segments after the checkpoint of a reader's snapshot stay until the reader ends, also if a
// later checkpoint includes them. A failure means that the reader misses events that are not in its pages.
func TestReaderKeepsSegments(t *testing.T) {
	s := withHistory(t)
	mark, began, end := s.checkpointer.mark.Load(), make(chan bool), make(chan bool)
	var group sync.WaitGroup
	group.Go(func() {
		err := s.viewCounters(func(view) error {
			close(began)
			<-end
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	<-began
	consumeN(t, s, "key", 500)
	flushCheckpoint(t, s)
	last := func() (end int64) {
		for _, g := range s.removable(anySegment) {
			end = g.End
		}
		return end
	}
	if got := last(); got == 0 || got > mark {
		t.Errorf("while the reader runs: got removable segments up to %d, want up to %d or less", got, mark)
	}
	close(end)
	group.Wait()
	if got := last(); got <= mark {
		t.Errorf("after the reader: got removable segments up to %d, want more than %d", got, mark)
	}
	if used := counterOf(t, s, ofKey("key")).Requests[core.Month]; used != 1000 {
		t.Errorf("got %d used, want 1000", used)
	}
}

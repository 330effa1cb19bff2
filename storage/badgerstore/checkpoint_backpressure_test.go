package badgerstore

import (
	"sync"
	"testing"
)

// TestRequestsWaitForCheckpoint: while too much of the event log is not folded nobody counts, so that the disk
// and the time it takes to open the store are bounded; when it is folded everyone goes
// on. Those who wait are counted.
func TestRequestsWaitForCheckpoint(t *testing.T) {
	s, err := open(t.TempDir(), Options{}) // nothing is folded in the background
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	defer func() { _ = s.Close() }()
	known(t, s, "key")
	const limit = 1 << 10
	s.checkpointer.maxPending.Store(limit)
	for s.Stats().PendingBytes < limit {
		consume(t, s, request("key", 1, 1<<20, noon))
	}
	before := s.Stats()
	if before.Waits != 0 {
		t.Errorf("waits before there is too much: got %d, want 0", before.Waits)
	}
	var group sync.WaitGroup
	const callers = 5
	for range callers {
		group.Go(func() { consume(t, s, request("key", 1, 1<<20, noon)) })
	}
	waitUntil(t, "all callers wait", func() bool { return s.Stats().Waits >= callers })
	if now := s.Stats(); now.PendingBytes != before.PendingBytes {
		t.Errorf("while they wait: got %d bytes, want the %d that there were", now.PendingBytes, before.PendingBytes)
	}
	if err := s.checkpoint(); err != nil {
		t.Fatalf("fold: %v", err)
	}
	group.Wait()
	if now := s.Stats(); now.PendingBytes >= limit || now.Checkpoints == 0 {
		t.Errorf("after folding: got %+v, want less than %d bytes that are not folded", now, limit)
	}
}

// TestWaitingRequestAfterFailure: who waits for room when the store takes no more writes is told.
func TestWaitingRequestAfterFailure(t *testing.T) {
	s, err := open(t.TempDir(), quiet)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	defer func() { _ = s.Close() }()
	known(t, s, "key")
	s.checkpointer.maxPending.Store(0)
	told := make(chan error)
	go func() {
		_, err := s.Consume(t.Context(), request("key", 1, 1, noon))
		told <- err
	}()
	waitUntil(t, "the caller waits", func() bool { return s.Stats().Waits > 0 })
	_ = s.fail(errMedium)
	if err := <-told; !isUnavailable(err) {
		t.Errorf("Consume: got error %v, want unavailable", err)
	}
}

package badgerstore

import (
	"sync"
	"testing"
)

// TestRequestsWaitForCheckpoint: requests wait while the last checkpoint lacks too much of the event log, and continue
// after the next checkpoint. Stats counts the waits. A failure means that the event log on disk and the time of the
// next start have no bound.
func TestRequestsWaitForCheckpoint(t *testing.T) {
	s, err := open(t.TempDir(), Options{}) // no checkpoints in the background
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
		t.Errorf("waits below the limit: got %d, want 0", before.Waits)
	}
	var group sync.WaitGroup
	const callers = 5
	for range callers {
		group.Go(func() { consume(t, s, request("key", 1, 1<<20, noon)) })
	}
	waitUntil(t, "all callers wait", func() bool { return s.Stats().Waits >= callers })
	if now := s.Stats(); now.PendingBytes != before.PendingBytes {
		t.Errorf("while callers wait: got %d pending bytes, want %d as before", now.PendingBytes, before.PendingBytes)
	}
	if err := s.checkpoint(); err != nil {
		t.Fatalf("checkpoint: %v", err)
	}
	group.Wait()
	if now := s.Stats(); now.PendingBytes >= limit || now.Checkpoints == 0 {
		t.Errorf("after a checkpoint: got %+v, want less than %d pending bytes", now, limit)
	}
}

// TestWaitingRequestAfterFailure: a request that waits for a checkpoint ends with an error when the store fails.
func TestWaitingRequestAfterFailure(t *testing.T) {
	s, err := open(t.TempDir(), quiet)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	defer func() { _ = s.Close() }()
	known(t, s, "key")
	s.checkpointer.maxPending.Store(0)
	result := make(chan error)
	go func() {
		_, err := s.Consume(t.Context(), request("key", 1, 1, noon))
		result <- err
	}()
	waitUntil(t, "the caller waits", func() bool { return s.Stats().Waits > 0 })
	_ = s.fail(errMedium)
	if err := <-result; !isUnavailable(err) {
		t.Errorf("Consume: got error %v, want unavailable", err)
	}
}

package badgerstore

import (
	"os"
	"sync"
	"testing"
	"time"
)

// OnWrite gets the number of events of each group commit, OnSync each sync, and OnCheckpoint each checkpoint with its error.
// When this fails, the metrics show a healthy store whose checkpoints fail.
func TestObservers(t *testing.T) {
	var mu sync.Mutex
	var events, writes, syncs, failed, checkpoints int
	count := func(fn func()) {
		mu.Lock()
		defer mu.Unlock()
		fn()
	}
	dir := t.TempDir()
	s, err := open(dir, Options{
		Durability: Power,
		OnWrite:    func(n int, took time.Duration) { count(func() { events += n; writes++ }) },
		OnSync:     func(took time.Duration) { count(func() { syncs++ }) },
		OnCheckpoint: func(took time.Duration, err error) {
			count(func() {
				checkpoints++
				if err != nil {
					failed++
				}
			})
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }() // the error of the lost directory
	known(t, s, "key")
	before := events
	const requests = 25
	consumeN(t, s, "key", requests)
	at := s.Stats().CheckpointedAt
	if err := s.checkpoint(); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	if events-before != requests || writes == 0 || syncs < requests {
		t.Errorf("got %d events in %d writes with %d syncs, want %d events, each synced", events-before, writes, syncs, requests)
	}
	if checkpoints < 1 || failed > 0 {
		t.Errorf("got %d checkpoints, %d of them failed, want one without an error", checkpoints, failed)
	}
	mu.Unlock()
	now := s.Stats().CheckpointedAt
	if !now.After(at) {
		t.Errorf("the time of the last checkpoint is %v, as before it: %v", now, at)
	}
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.Rename(dir+".away", dir) }()
	if err := s.checkpoint(); err == nil {
		t.Error("a checkpoint without the directory of the store: got no error")
	}
	s.checkDir()
	if err := s.failure(); !IsDamage(err) || IsFull(err) {
		t.Errorf("without its directory: got %v, want an error for which IsDamage is true", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if failed == 0 || !s.Stats().CheckpointedAt.Equal(now) {
		t.Errorf("a failed checkpoint: got %d failures, and the time %v after %v", failed, s.Stats().CheckpointedAt, now)
	}
}

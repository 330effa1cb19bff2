package badgerstore

import (
	"errors"
	"testing"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
)

// TestHeal: a store that serves finds damage of its database, and rebuilds the database: a record is missing that another
// one names, and a scrub finds a changed table. It counts on, and no count is lost.
func TestHeal(t *testing.T) {
	for name, harm := range map[string]func(t *testing.T, s *Store){
		"missing record": func(t *testing.T, s *Store) {
			err := s.db.Update(func(txn *badger.Txn) error { return txn.Delete(keyPath(acct, keyRef(t, s, "key").number)) })
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Key(t.Context(), acct, "key"); !errors.Is(err, core.ErrUnavailable) {
				t.Errorf("Key: got error %v, want %v", err, core.ErrUnavailable)
			}
		},
		"scrub": func(t *testing.T, s *Store) {
			changeByte(t, glob(t, s.dir, "*.sst")[0], 20)
			if err := s.failOnDamage(scrubNow(s)); !errors.Is(err, core.ErrUnavailable) {
				t.Errorf("scrub: got error %v, want %v", err, core.ErrUnavailable)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for i := range 2 { // the first stop makes a table
				s := openAlone(t, dir, quiet)
				if i == 0 {
					known(t, s, "key")
				}
				consume(t, s, request("key", 1, endless, noon))
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
			s := mustOpen(t, dir, quiet)
			s.SetCounterCache(5000)
			consume(t, s, request("key", 1, endless, noon))
			wantUsed(t, s, ofKey("key"), 3)
			harm(t, s)
			waitUntil(t, "the store is healed", func() bool {
				err := s.Health(t.Context())
				if err != nil && !errors.Is(err, core.ErrUnavailable) {
					t.Fatalf("Health: got %v", err)
				}
				return err == nil && s.healing.at.Load() > 0
			})
			wantUsed(t, s, ofKey("key"), 3)
			consume(t, s, request("key", 1, endless, noon))
			if got := s.counters.limit.Load(); got != 5000 {
				t.Errorf("got a cache of %d counters, want 5000 as before", got)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			wantWhole(t, dir)
			wantUsed(t, openAlone(t, dir, quiet), ofKey("key"), 4)
		})
	}
}

// TestHealWritesFirst: a store is healed while the event log has denials that are not in its files yet. The denials stay in the
// history, and the next rebuild replays the requests after them. A failure means that two events of a history have one number.
func TestHealWritesFirst(t *testing.T) {
	dir := t.TempDir()
	s := openAlone(t, dir, quiet)
	known(t, s, "key")
	const quota = 72 // after so many entries, the next one changes the chain of the history
	for range quota {
		consume(t, s, request("key", 1, quota, noon))
	}
	if consume(t, s, request("key", 1, quota, noon)) || s.events.Written() == s.events.End() {
		t.Fatal("there is no denial that is not in the files")
	}
	s.life.Lock()
	err := s.reopen(errBadger)
	s.life.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	consume(t, s, request("key", 1, endless, noon))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	remove(t, glob(t, dir, "MANIFEST"))
	s = openAlone(t, dir, quiet)
	if got := len(historyOf(t, s, ofKey("key"))); got != quota+2 {
		t.Errorf("history: got %d entries, want %d", got, quota+2)
	}
	wantUsed(t, s, ofKey("key"), quota+1)
}

// TestScrubDuringImage: a scrub lists the images while another goroutine writes an image. The image is written.
func TestScrubDuringImage(t *testing.T) {
	s := openAlone(t, t.TempDir(), quiet)
	known(t, s, "key")
	consume(t, s, request("key", 1, endless, noon))
	writeCheckpoint(t, s)
	if err := s.writeImage(func(int) error { return s.findImages() }); err != nil {
		t.Errorf("writeImage: %v", err)
	}
}

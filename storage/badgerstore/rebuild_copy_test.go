package badgerstore

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// mustScrub runs a scrub that must find no damage.
func mustScrub(t *testing.T, s *Store) {
	t.Helper()
	if err := scrubNow(s); err != nil {
		t.Fatalf("scrub: %v", err)
	}
}

func scrubNow(s *Store) error {
	return (&scrubbing{s: s, sleep: func(time.Duration) bool { return true }, began: time.Now()}).run()
}

// addSegments changes keys and counts requests until the event log has three more segments.
func addSegments(t *testing.T, s *Store, round int) {
	t.Helper()
	update(t, s, func(tx core.Tx) error { return changeKeys(tx, round) })
	for n := len(s.events.Segments()) + 3; len(s.events.Segments()) < n; {
		for i := range damagedKeys {
			if _, err := s.Key(t.Context(), acct, damagedKey(i)); err == nil {
				consume(t, s, request(damagedKey(i), int64(i%8+1), endless, noon.Add(time.Hour)))
			}
		}
	}
}

func anySegment(eventlog.Segment) bool { return true }

// copiedStore makes a store with a checkpoint copy. Retention has removed the segments before the position of the copy.
// want is the dump of the store.
func copiedStore(t *testing.T, clean bool) (dir, want string) {
	t.Helper()
	dir, _ = filledStore(t, true)
	s := openAlone(t, dir, smallSegments)
	addSegments(t, s, 4)
	flushCheckpoint(t, s)
	mustScrub(t, s)
	addSegments(t, s, 5)
	flushCheckpoint(t, s)
	if err := s.remove(s.removable(anySegment)); err != nil {
		t.Fatal(err)
	}
	oldest, copied := s.events.Segments()[0], s.retention.copied.Load()
	if oldest.Base == firstPosition || oldest.Base > copied || oldest.End < copied {
		t.Fatalf("got the oldest segment %+v, want that of position %d", oldest, copied)
	}
	update(t, s, func(tx core.Tx) error { return tx.PutUser(&core.User{AccountID: acct, ID: 2, Name: "late"}) })
	if clean {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	} else {
		if err := s.syncAll(); err != nil {
			t.Fatal(err)
		}
		killed := killedCopy(t, dir)
		abandon(t, s)
		copyFiles(t, filepath.Join(killed, copyDir), filepath.Join(dir, copyDir))
		dir = killed
	}
	return dir, dumpOf(t, dir)
}

// withCopy returns a copy of a store with its checkpoint copy.
func withCopy(t *testing.T, dir string) string {
	t.Helper()
	to := copyOf(t, dir)
	copyFiles(t, filepath.Join(to, copyDir), filepath.Join(dir, copyDir))
	return to
}

// TestRebuildFromCopy: when the first segments were removed, Rebuild makes the database from the copy of the last scrub
// and the event log after the copy. All data is as before, and the copy is unchanged.
func TestRebuildFromCopy(t *testing.T) {
	for _, clean := range []bool{true, false} {
		whole, want := copiedStore(t, clean)
		for name, lose := range databaseLosses {
			t.Run(stopName(clean)+"/"+name, func(t *testing.T) {
				dir := withCopy(t, whole)
				lose(t, dir)
				copied := contents(t, filepath.Join(dir, copyDir))
				if lines := mustRebuild(t, dir); !strings.Contains(lines[0], "the copy of ") {
					t.Errorf("got lines %q, want the copy", lines)
				}
				if !maps.Equal(contents(t, filepath.Join(dir, copyDir)), copied) {
					t.Error("the copy was changed")
				}
				wantDump(t, dir, want)
			})
		}
		for name, file := range map[string]string{"the copy of the database is damaged": "*.sst", "no whole copy": table.InventoryName} {
			dir := withCopy(t, whole)
			truncate(t, glob(t, filepath.Join(dir, copyDir), file))
			remove(t, glob(t, dir, "MANIFEST"))
			before := contents(t, dir)
			_, err := Rebuild(dir, RebuildOptions{Progress: func(string) {}})
			if wantOneLine(t, err, dir); !strings.Contains(err.Error(), name) || !maps.Equal(contents(t, dir), before) {
				t.Errorf("got error %v or other files, want %q", err, name)
			}
		}
	}
}

// TestRebuildAfterScrub: a scrub that finds damage keeps the copy of the previous scrub, and Rebuild uses that copy.
func TestRebuildAfterScrub(t *testing.T) {
	dir, _ := copiedStore(t, true)
	s := openAlone(t, dir, smallSegments)
	_, err := dump(s) // counts the request id again, because the segment of its first answer was removed
	want, err2 := dump(s)
	if err := firstOf(err, err2); err != nil {
		t.Fatal(err)
	}
	for _, path := range glob(t, dir, "*.sst") {
		changeByte(t, path, 900)
	}
	before := contents(t, filepath.Join(dir, copyDir))
	if err := s.failOnDamage(scrubNow(s)); !isDamage(err) {
		t.Fatalf("scrub: got %v, want damage", err)
	}
	_ = s.Close() // returns the damage again
	if _, err := os.Stat(filepath.Join(dir, draftDir)); err == nil || !maps.Equal(contents(t, filepath.Join(dir, copyDir)), before) {
		t.Errorf("the copy was changed, or the draft exists: %v", err)
	}
	mustRebuild(t, dir)
	wantDump(t, dir, want)
}

// TestCopyMakesRoom: the store removes the copy when requests need its space. On a full disk, the copy is removed before
// any history. Beyond max_history, the copy is removed when removing history is not enough.
func TestCopyMakesRoom(t *testing.T) {
	whole, _ := copiedStore(t, true)
	exists := func(s *Store) bool {
		_, err := os.Stat(filepath.Join(s.dir, copyDir))
		return err == nil
	}
	open := func() *Store { return openAlone(t, withCopy(t, whole), smallSegments) }
	s := open()
	enough := uint64(s.reserve.MinFree() + s.reserve.Slack())
	free := []uint64{0, enough}
	n, err := s.makeSpace(noon, func() (n uint64, err error) {
		n, free = free[0], free[1:]
		return n, nil
	})
	if err != nil || n != enough || exists(s) || s.retention.removedEarly.Load() {
		t.Errorf("a full disk: got %d free, %v, copy %v, history removed %v", n, err, exists(s), s.retention.removedEarly.Load())
	}
	if s.retention.copied.Load() != noCopy || len(s.removable(anySegment)) == 0 {
		t.Error("segments are kept for a removed copy")
	}
	mustScrub(t, s)
	if !exists(s) {
		t.Error("the next scrub makes no copy")
	}

	s = open()
	later := time.Now().Add(72 * time.Hour)
	s.SetMaxHistory(s.historyBytes())
	if err := s.trim(later); err != nil || !exists(s) {
		t.Errorf("below max_history: got %v, or no copy", err)
	}
	segments := len(s.events.Segments())
	s.SetMaxHistory(s.historyBytes() - 1)
	if err := s.trim(later); err != nil || exists(s) || len(s.events.Segments()) >= segments {
		t.Errorf("above max_history: got %v, %d segments, copy %v", err, len(s.events.Segments()), exists(s))
	}
}

// TestCopyStopped: when writing a copy is stopped, no draft is left and the previous copy stays. When a copy is dropped
// while it is written, neither is left. The next start removes the draft of a killed process.
func TestCopyStopped(t *testing.T) {
	dir, _ := copiedStore(t, true)
	s := openAlone(t, dir, smallSegments)
	before := contents(t, filepath.Join(dir, copyDir))
	stop := &scrubbing{s: s, sleep: func(time.Duration) bool { return false }, began: time.Now(), sincePause: scrubPauseBytes}
	if verified, err := stop.copyTables(); verified || err != nil || !maps.Equal(contents(t, filepath.Join(dir, copyDir)), before) {
		t.Errorf("stopped: got %v, %v, or another copy", verified, err)
	}
	if s.retention.copied.Load() != copyPosition(dir) {
		t.Error("stopped: the segments of the copy are not kept")
	}
	drop := &scrubbing{s: s, sleep: func(time.Duration) bool {
		s.retention.running.Lock()
		defer s.retention.running.Unlock()
		return s.dropCopy("test")
	}, began: time.Now(), sincePause: scrubPauseBytes}
	if verified, err := drop.copyTables(); verified || err != nil || s.retention.copied.Load() != noCopy {
		t.Errorf("dropped: got %v, %v, position %d", verified, err, s.retention.copied.Load())
	}
	for _, name := range []string{copyDir, draftDir} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			t.Errorf("dropped: %s still exists", name)
		}
	}
	if err := firstOf(s.Close(), os.Mkdir(filepath.Join(dir, draftDir), 0o700)); err != nil {
		t.Fatal(err)
	}
	openAlone(t, dir, smallSegments)
	if _, err := os.Stat(filepath.Join(dir, draftDir)); err == nil {
		t.Error("the draft of a killed process still exists")
	}
}

// TestKilledReplacingCopy: a process is killed between removing the copy and renaming the draft. The next start and
// Rebuild use the draft as the copy. A failure means that a damaged store cannot be rebuilt until the next scrub, a
// day later.
func TestKilledReplacingCopy(t *testing.T) {
	whole, want := copiedStore(t, true)
	for name, kill := range map[string]func(dir string) error{
		"the copy has no inventory": func(dir string) error { return os.Remove(filepath.Join(dir, copyDir, table.InventoryName)) },
		"the copy is removed":       func(dir string) error { return os.RemoveAll(filepath.Join(dir, copyDir)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := withCopy(t, whole)
			copyFiles(t, filepath.Join(dir, draftDir), filepath.Join(dir, copyDir))
			draft := contents(t, filepath.Join(dir, draftDir))
			if err := kill(dir); err != nil {
				t.Fatal(err)
			}
			lost := copyOf(t, dir)
			for _, name := range []string{copyDir, draftDir} {
				if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
					copyFiles(t, filepath.Join(lost, name), filepath.Join(dir, name))
				}
			}
			remove(t, glob(t, lost, "*.sst"))
			if lines := mustRebuild(t, lost); !strings.Contains(lines[0], "the copy of ") {
				t.Errorf("got lines %q, want the copy", lines)
			}
			wantDump(t, lost, want)
			s := openAlone(t, dir, smallSegments)
			_, err := os.Stat(filepath.Join(dir, draftDir))
			if !maps.Equal(contents(t, filepath.Join(dir, copyDir)), draft) || err == nil {
				t.Errorf("after a start: the copy is not the draft, or the draft still exists: %v", err)
			}
			if got := s.retention.copied.Load(); got != copyPosition(dir) || got == noCopy {
				t.Errorf("got the copy at %d, want %d", got, copyPosition(dir))
			}
		})
	}
	dir := withCopy(t, whole)
	if err := os.Rename(filepath.Join(dir, copyDir), filepath.Join(dir, draftDir)); err != nil {
		t.Fatal(err)
	}
	draft := t.TempDir()
	copyFiles(t, draft, filepath.Join(dir, draftDir))
	s := openAlone(t, dir, smallSegments)
	s.dropCopy("test")
	flushCheckpoint(t, s)
	if err := firstOf(s.remove(s.removable(anySegment)), s.Close()); err != nil {
		t.Fatal(err)
	}
	copyFiles(t, filepath.Join(dir, draftDir), draft)
	s = openAlone(t, dir, smallSegments)
	if got := s.retention.copied.Load(); got != noCopy {
		t.Errorf("a draft whose segments were removed: got the copy at %d, want no copy: it would keep all later segments", got)
	}
}

// TestCopyDuringWrites: copies that are made while tables are written and compacted are undamaged. Rebuild restores the
// store from the last copy and the event log.
func TestCopyDuringWrites(t *testing.T) {
	dir, _ := filledStore(t, true)
	s := openAlone(t, dir, Options{Logger: quiet.Logger, flushBytes: 1})
	written, copies := make(chan error), 0
	go func() {
		written <- func() error {
			for round := range 40 {
				for i := range damagedKeys {
					c := request(damagedKey(i), int64(i%8+1), endless, noon.Add(time.Duration(round)*time.Second))
					if _, err := s.Consume(t.Context(), c); err != nil && !strings.Contains(err.Error(), "not found") {
						return err
					}
				}
				if err := s.Update(t.Context(), acct, func(tx core.Tx) error { return tx.PutUser(&core.User{AccountID: acct, ID: 3, Name: fmt.Sprint(round)}) }); err != nil {
					return err
				}
				if err := s.checkpoint(); err != nil {
					return err
				}
				s.watch()
			}
			return nil
		}()
	}()
	for done := false; !done; {
		select {
		case err := <-written:
			if done = true; err != nil {
				t.Fatal(err)
			}
		default:
			mustScrub(t, s)
			copies++
			if _, err := table.Check(table.Options{Dir: filepath.Join(dir, copyDir), Logger: quiet.Logger}, func(table.Progress) {}, func(err error) { t.Error(err) }); err != nil {
				t.Fatal(err)
			}
		}
	}
	want, err := dump(s)
	if err = firstOf(err, s.Close()); err != nil {
		t.Fatal(err)
	}
	t.Log(copies, "copies")
	remove(t, glob(t, dir, "*"))
	mustRebuild(t, dir)
	wantDump(t, dir, want)
}

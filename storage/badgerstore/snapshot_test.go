package badgerstore

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/reserve"
)

// mustSnapshot makes a snapshot. The cleanup of the test closes the snapshot.
func mustSnapshot(t testing.TB, s *Store) *Snapshot {
	t.Helper()
	c, err := s.newSnapshot(context.Background())
	if err != nil {
		t.Fatalf("Snapshot: %v", err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// closeSnapshot closes a snapshot, and fails unless its files are gone.
func closeSnapshot(t testing.TB, c *Snapshot) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	wantNoSnapshot(t, c.of.dir)
}

func wantNoSnapshot(t testing.TB, dir string) {
	t.Helper()
	if _, err := os.Lstat(filepath.Join(dir, snapshotDir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the snapshot is still there: %v", err)
	}
}

// isSameFile reports whether two paths are names of one file.
func isSameFile(a, b string) bool {
	x, err := os.Stat(a)
	y, err2 := os.Stat(b)
	return err == nil && err2 == nil && os.SameFile(x, y)
}

// wantWhole fails if the check of a closed store finds damage.
func wantWhole(t *testing.T, dir string) {
	t.Helper()
	_, err := Check(dir, CheckOptions{Progress: func(string) {}, Damage: func(err error) { t.Errorf("damage: %v", err) }})
	if err != nil {
		t.Errorf("Check: %v", err)
	}
}

// recorders passes records to several models.
type recorders struct {
	mu     sync.Mutex
	models []*model
}

func (r *recorders) each(fn func(*model)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.models {
		fn(m)
	}
}

// remove ends the records for a model.
func (r *recorders) remove(m *model) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.models = slices.DeleteFunc(slices.Clone(r.models), func(one *model) bool { return one == m })
}

func (r *recorders) requesting(a testRequest) { r.each(func(m *model) { m.requesting(a) }) }
func (r *recorders) answered(name string, o outcome, used int64) {
	r.each(func(m *model) { m.answered(name, o, used) })
}
func (r *recorders) creating(kind, name string) { r.each(func(m *model) { m.creating(kind, name) }) }
func (r *recorders) created(name string)        { r.each(func(m *model) { m.created(name) }) }
func (r *recorders) deleting(name string)       { r.each(func(m *model) { m.deleting(name) }) }
func (r *recorders) deleted(name string)        { r.each(func(m *model) { m.deleted(name) }) }

// fileSystems are the file systems of the tests: with hard links, and without.
var fileSystems = map[string]eventlog.FS{"links": nil, "copies": struct{ eventlog.FS }{eventlog.OS}}

// TestSnapshot: a snapshot under load has all that was answered before the call, and nothing that was sent after its return.
// Counters, histories and lists agree in the snapshot. The store has everything, also after it was closed.
func TestSnapshot(t *testing.T) {
	t.Parallel()
	for name, fs := range fileSystems {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			o := quiet
			o.fs, o.segmentSize = fs, 64<<10
			s := mustOpen(t, dir, o)
			if err := createFixture(s); err != nil {
				t.Fatal(err)
			}
			const snapshots = 4
			all := &recorders{models: []*model{newModel()}}
			whole := all.models[0]
			for range snapshots {
				all.models = append(all.models, newModel())
			}
			w := traffic{s: s, recorder: all, crowd: true}
			models := slices.Clone(all.models[1:])
			w.start()
			for _, m := range models {
				time.Sleep(300 * time.Millisecond)
				m.crash(true)
				c, err := s.newSnapshot(t.Context())
				if err != nil {
					t.Errorf("Snapshot: %v", err)
					break
				}
				all.remove(m)
				linked := false
				for _, path := range glob(t, filepath.Join(c.dir, eventLogDir), "*"+segmentSuffix) {
					linked = linked || isSameFile(path, filepath.Join(dir, eventLogDir, filepath.Base(path)))
				}
				if linked != (fs == nil) {
					t.Errorf("hard links of segments: got %t", linked)
				}
				for _, problem := range append(m.check(c.Store), audit(c.Store)...) {
					t.Errorf("snapshot: %s", problem)
				}
				if m.totals["answered"] == 0 {
					t.Error("no request was answered before the snapshot")
				}
				closeSnapshot(t, c)
			}
			w.stop()
			if err := w.wait(); err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatalf("Close: %v", err)
			}
			wantWhole(t, dir)
			s = openAlone(t, dir, o)
			whole.crash(true)
			for _, problem := range append(whole.check(s), audit(s)...) {
				t.Errorf("store: %s", problem)
			}
			t.Logf("%v", whole.totals)
		})
	}
}

// TestSnapshotOneInstant: one goroutine counts a request of key a, then one of key b. Another one puts two users at once. Each snapshot is of one instant.
func TestSnapshotOneInstant(t *testing.T) {
	t.Parallel()
	s := openIn(t, t.TempDir(), Options{Logger: quiet.Logger, memtable: smallMemtable, segmentSize: 64 << 10})
	known(t, s, "a", "b")
	var stopped atomic.Bool
	var group sync.WaitGroup
	loop := func(fn func(i int64) error) {
		group.Go(func() {
			for i := int64(1); !stopped.Load(); i++ {
				if err := fn(i); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	var answered atomic.Int64
	loop(func(int64) error {
		a, b := request("a", 1, endless, noon), request("b", 1, endless, noon)
		a.Shared, b.Shared = true, true
		_, err := s.Consume(context.Background(), a)
		answered.Add(1)
		_, err2 := s.Consume(context.Background(), b)
		return firstOf(err, err2)
	})
	var pairs atomic.Int64
	loop(func(i int64) error {
		err := s.Update(context.Background(), acct, func(tx core.Tx) error {
			return firstOf(tx.PutUser(&core.User{AccountID: acct, ID: 100 + 2*i, Name: "even"}), tx.PutUser(&core.User{AccountID: acct, ID: 101 + 2*i, Name: "odd"}))
		})
		pairs.Store(i)
		return err
	})
	for range 5 {
		time.Sleep(100 * time.Millisecond)
		least, leastPairs := answered.Load(), pairs.Load()
		c, err := s.newSnapshot(t.Context())
		most := answered.Load() + 1
		if err != nil {
			t.Errorf("Snapshot: %v", err)
			break
		}
		a, b := counterOf(t, c.Store, ofKey("a")).Requests[core.Month], counterOf(t, c.Store, ofKey("b")).Requests[core.Month]
		user := counterOf(t, c.Store, ofUser(1)).Requests[core.Month]
		if a-b != 0 && a-b != 1 || a < least || a > most || user != a+b {
			t.Errorf("got %d of a, %d of b, %d of the user, want %d to %d, b the same or one less, and their sum", a, b, user, least, most)
		}
		for id := int64(102); ; id += 2 {
			_, even := c.User(t.Context(), acct, id)
			_, odd := c.User(t.Context(), acct, id+1)
			if (even == nil) != (odd == nil) || even != nil && (id-100)/2 <= leastPairs {
				t.Errorf("users %d and %d of %d pairs: got %v, %v, want both or none", id, id+1, leastPairs, even, odd)
			}
			if even != nil {
				break
			}
		}
		closeSnapshot(t, c)
	}
	stopped.Store(true)
	group.Wait()
}

// TestSnapshotIsIndependent: a snapshot stays as it is while the store changes its tables and removes history, and the store
// stays as it is while the snapshot is read and closed.
func TestSnapshotIsIndependent(t *testing.T) {
	for name, fs := range fileSystems {
		t.Run(name, func(t *testing.T) {
			dir, _ := filledStore(t, true)
			o := smallSegments
			o.fs = fs
			s := openAlone(t, dir, o)
			addSegments(t, s, 4)
			want, err := dump(s)
			if err != nil {
				t.Fatal(err)
			}
			c := mustSnapshot(t, s)
			if _, err := s.newSnapshot(t.Context()); !errors.Is(err, ErrSnapshotOpen) {
				t.Errorf("second Snapshot: got %v, want ErrSnapshotOpen", err)
			}
			for round := 6; round < 9; round++ {
				for i := range damagedKeys {
					consume(t, s, request(damagedKey(0), int64(i%8+1), endless, noon.Add(time.Hour)))
				}
				flushCheckpoint(t, s)
			}
			if err := s.remove(s.removable(anySegment)); err != nil {
				t.Fatal(err)
			}
			if got := readOnlyDump(t, c); got != withoutRequestID(want) {
				t.Errorf("the snapshot has changed: got %d bytes, want %d", len(got), len(want))
			}
			if err := c.Update(t.Context(), acct, func(tx core.Tx) error { return tx.DeleteUser(1) }); !errors.Is(err, core.ErrUnavailable) {
				t.Errorf("Update of a snapshot: got %v, want ErrUnavailable", err)
			}
			if _, err := c.Consume(t.Context(), request(damagedKey(0), 1, endless, noon)); !errors.Is(err, core.ErrUnavailable) {
				t.Errorf("Consume of a snapshot: got %v, want ErrUnavailable", err)
			}
			if _, err := c.newSnapshot(t.Context()); err == nil {
				t.Error("Snapshot of a snapshot: got no error")
			}
			closeSnapshot(t, c)
			_, err = dump(s) // counts the request id again, because the segment of its first answer was removed
			want, err2 := dump(s)
			if err := firstOf(err, err2); err != nil {
				t.Fatal(err)
			}
			closeSnapshot(t, mustSnapshot(t, s))
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			wantWhole(t, dir)
			wantDump(t, dir, want)
		})
	}
}

// readOnlyDump returns the dump of a snapshot without the answer to the repeated request id.
func readOnlyDump(t *testing.T, c *Snapshot) string {
	t.Helper()
	got, err := dump(c.Store)
	if !errors.Is(err, errReadOnly) {
		t.Errorf("dump: got %v, want the refused request only", err)
	}
	return withoutRequestID(got)
}

func withoutRequestID(dump string) string {
	before, _, _ := strings.Cut(dump, "request id")
	return before
}

// TestSnapshotOfYoungStore: a snapshot of a store without a table has everything.
func TestSnapshotOfYoungStore(t *testing.T) {
	s := openAlone(t, t.TempDir(), quiet)
	closeSnapshot(t, mustSnapshot(t, s))
	known(t, s, "key")
	consume(t, s, request("key", 1, endless, noon))
	c := mustSnapshot(t, s)
	wantUsed(t, c.Store, ofKey("key"), 1)
	closeSnapshot(t, c)
}

// TestSnapshotLeftByKill: no command opens a snapshot that a killed process has left, and the next start removes it.
func TestSnapshotLeftByKill(t *testing.T) {
	dir, want := filledStore(t, true)
	s := openAlone(t, dir, smallSegments)
	c := mustSnapshot(t, s)
	files := copyOf(t, c.dir)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	left := copyOf(t, dir)
	below := filepath.Join(left, snapshotDir)
	if err := os.Rename(files, below); err != nil {
		t.Fatal(err)
	}
	_, opened := Open(below, quiet)
	_, checked := Check(below, CheckOptions{Progress: func(string) {}, Damage: func(error) {}})
	_, repaired := Repair(below, func([]string) bool { return true })
	_, rebuilt := Rebuild(below, RebuildOptions{Confirm: func([]string) bool { return true }, Progress: func(string) {}})
	for _, err := range []error{opened, checked, repaired, rebuilt} {
		if wantOneLine(t, err, below); !errors.Is(err, errIsSnapshot) {
			t.Errorf("got %v, want errIsSnapshot", err)
		}
	}
	wantWhole(t, left)
	wantNoSnapshot(t, left)
	wantDump(t, left, want)
}

// TestSnapshotEnds: a snapshot ends with the context of its making, with the store, and on a full disk. Its files are gone
// then, and the store goes on.
func TestSnapshotEnds(t *testing.T) {
	dir, _ := filledStore(t, true)
	var at func()
	o := smallSegments
	o.failpoint = func(f failpoint) {
		if f == failSnapshot {
			at()
		}
	}
	s := openAlone(t, dir, o)
	addSegments(t, s, 4)

	steps := 0
	at = func() { steps++ }
	closeSnapshot(t, mustSnapshot(t, s))
	all := steps
	for stop := 1; stop <= all; stop++ {
		ctx, cancel := context.WithCancel(t.Context())
		steps = 0
		at = func() {
			if steps++; steps == stop {
				cancel()
			}
		}
		if c, err := s.newSnapshot(ctx); err == nil { // fewer steps than before
			closeSnapshot(t, c)
		} else if !errors.Is(err, context.Canceled) {
			t.Errorf("canceled at step %d of %d: got %v", stop, all, err)
		}
		wantNoSnapshot(t, dir)
		cancel()
	}
	at = func() {}

	s.reserve.Space = func(string) (uint64, uint64, error) { return 30 << 20, 1 << 40, nil }
	if _, err := s.newSnapshot(t.Context()); !errors.Is(err, reserve.ErrFull) || !strings.Contains(err.Error(), "beside min_free") {
		t.Errorf("without room: got %v, want ErrFull", err)
	}
	s.reserve.Space = reserve.Space

	c := mustSnapshot(t, s)
	segments := len(s.events.Segments())
	if _, err := s.makeSpace(noon, func() (uint64, error) { return 0, nil }); err != nil {
		t.Fatal(err)
	}
	if n := len(s.events.Segments()); n != segments {
		t.Errorf("got %d segments, want %d: the snapshot has hard links to them", n, segments)
	}
	waitUntil(t, "the snapshot is gone", func() bool { return s.snapshot.Load() == nil })
	wantNoSnapshot(t, dir)
	if _, _, err := c.Users(t.Context(), acct, core.UserFilter{}, everything); !errors.Is(err, core.ErrUnavailable) {
		t.Errorf("read of the removed snapshot: got %v, want ErrUnavailable", err)
	}
	if err := c.Close(); !errors.Is(err, reserve.ErrFull) {
		t.Errorf("Close: got %v, want ErrFull", err)
	}

	c = mustSnapshot(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	wantNoSnapshot(t, dir)
	if err := c.Close(); !errors.Is(err, errClosed) {
		t.Errorf("Close after the store: got %v, want %v", err, errClosed)
	}
	if _, err := s.newSnapshot(t.Context()); !errors.Is(err, core.ErrUnavailable) {
		t.Errorf("Snapshot of a closed store: got %v, want ErrUnavailable", err)
	}
	wantWhole(t, dir)
}

// TestSnapshotWhileClosing: Close ends the making of a snapshot.
func TestSnapshotWhileClosing(t *testing.T) {
	dir, _ := filledStore(t, true)
	closing, made := make(chan struct{}), make(chan error)
	var once sync.Once
	o := smallSegments
	o.failpoint = func(f failpoint) {
		if f == failSnapshot {
			once.Do(func() { close(closing) })
			time.Sleep(time.Millisecond)
		}
	}
	s := openAlone(t, dir, o)
	addSegments(t, s, 4)
	go func() {
		_, err := s.newSnapshot(context.Background())
		made <- err
	}()
	<-closing
	if err := s.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if err := <-made; !errors.Is(err, core.ErrUnavailable) {
		t.Errorf("Snapshot: got %v, want ErrUnavailable", err)
	}
	wantNoSnapshot(t, dir)
	wantWhole(t, dir)
}

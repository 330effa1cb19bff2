package badgerstore

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/diskspace"
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

// closeSnapshot closes a snapshot.
func closeSnapshot(t testing.TB, c *Snapshot) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func auditSnapshot(c *Snapshot) []string {
	a := newAuditing()
	a.end = c.end
	return a.audit(c.Store)
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

// TestSnapshot: a snapshot under load has all that was answered before the call, and nothing that was sent after its return.
// Counters, histories and lists agree in the snapshot. The store has everything, also after it was closed.
func TestSnapshot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o := quiet
	o.segmentSize = 64 << 10
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
		waitUntil(t, "a request was answered", func() bool {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.totals["answered"] > 0
		})
		m.crash(true)
		c, err := s.newSnapshot(t.Context())
		if err != nil {
			t.Errorf("Snapshot: %v", err)
			break
		}
		all.remove(m)
		for _, problem := range append(m.check(c.Store), auditSnapshot(c)...) {
			t.Errorf("snapshot: %s", problem)
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
	dir, _ := filledStore(t, true)
	s := openAlone(t, dir, smallSegments)
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
	if want, err = dump(s); err != nil {
		t.Fatal(err)
	}
	closeSnapshot(t, mustSnapshot(t, s))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	wantWhole(t, dir)
	wantDump(t, dir, want)
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

// TestSnapshotEnds: a snapshot ends with the context of its making, with the store, and on a full disk. The store goes on then.
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
		cancel()
	}
	at = func() {}

	c := mustSnapshot(t, s)
	segments := len(s.events.Segments())
	setFull(s, true)
	if err := s.removeHistory(noon); err != nil {
		t.Fatal(err)
	}
	setFull(s, false)
	if n := len(s.events.Segments()); n != segments {
		t.Errorf("got %d segments, want %d: the snapshot reads them", n, segments)
	}
	waitUntil(t, "the snapshot is closed", func() bool { return s.snapshot.Load() == nil })
	if _, _, err := c.Users(t.Context(), acct, core.UserFilter{}, everything); !errors.Is(err, core.ErrUnavailable) {
		t.Errorf("read of the closed snapshot: got %v, want ErrUnavailable", err)
	}
	if err := c.Close(); !errors.Is(err, diskspace.ErrFull) {
		t.Errorf("Close: got %v, want ErrFull", err)
	}

	c = mustSnapshot(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
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
	wantWhole(t, dir)
}

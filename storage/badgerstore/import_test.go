package badgerstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/eventlog"
)

// imported appends n entries of a key of user 1 to the histories of the key and of the user. Every second entry is
// denied. It returns the number of allowed entries.
func imported(t testing.TB, s *Store, key string, n int) (allowed int64) {
	t.Helper()
	entries := make([]core.Entry, n)
	for i := range entries {
		entries[i] = core.Entry{At: noon.Add(time.Duration(i)), KeyID: key, UserID: 1, Endpoint: fmt.Sprintf("/%d", i), Cost: 3, Denied: i%2 == 1}
		if i%2 == 0 {
			allowed++
		}
	}
	appendHistory(t, s, ofKey(key), entries)
	appendHistory(t, s, ofUser(1), entries)
	return allowed
}

func appendHistory(t testing.TB, s *Store, of core.CounterID, entries []core.Entry) {
	t.Helper()
	if err := s.AppendHistory(context.Background(), of, entries, time.Hour); err != nil {
		t.Fatalf("AppendHistory: %v", err)
	}
}

// set sets each of the counters to the value to.
func set(t testing.TB, s *Store, to core.Counter, ids ...core.CounterID) {
	t.Helper()
	all := make([]core.Counter, len(ids))
	for i := range all {
		all[i] = to
	}
	if err := s.SetCounters(context.Background(), ids, all); err != nil {
		t.Fatalf("SetCounters: %v", err)
	}
}

// used returns a counter with usage n and n omitted denials.
func used(n int64) (c core.Counter) {
	c.Add(charge(n, noon))
	c.DeniedOmitted = n
	return c
}

// charge returns the charge of a request.
func charge(cost int64, at time.Time) *core.Charge {
	return (&core.Consumption{Cost: cost, Entry: core.Entry{At: at}}).Charge()
}

func sameCounter(got, want core.Counter) bool {
	return got.Same(&want)
}

// TestImportKilled: after a kill, a store has all histories and counters that AppendHistory and SetCounters have stored.
// No counter counts an imported entry.
func TestImportKilled(t *testing.T) {
	for _, checkpointed := range []bool{false, true} {
		dir := t.TempDir()
		s := openAlone(t, dir, Options{})
		known(t, s, "a", "b")
		want := imported(t, s, "a", 300)
		if checkpointed {
			writeCheckpoint(t, s)
		}
		consume(t, s, request("a", 1, 10, noon))
		want += imported(t, s, "a", 10) + 1
		if got := counterOf(t, s, ofKey("a")); !sameCounter(got, oneUsed()) {
			t.Errorf("the key's counter: got %+v, want the one request that was counted", got)
		}
		for _, problem := range audit(s) {
			t.Error(problem)
		}
		set(t, s, used(7), ofKey("b"), ofUser(1), ofUser(8))
		abandon(t, s)

		s = openAlone(t, dir, Options{})
		if got := counterOf(t, s, ofKey("a")); !sameCounter(got, oneUsed()) {
			t.Errorf("the key's counter: got %+v, want the one request that was counted", got)
		}
		for _, id := range []core.CounterID{ofKey("b"), ofUser(1), ofUser(8)} {
			if got := counterOf(t, s, id); !sameCounter(got, used(7)) {
				t.Errorf("%+v: got %+v, want what was set", id, got)
			}
		}
		for _, id := range []core.CounterID{ofKey("a"), ofUser(1)} {
			if got := allowedIn(t, s, id); got != want {
				t.Errorf("history of %+v: got %d allowed entries, want %d", id, got, want)
			}
		}
	}
}

// TestSetHistoryKilled: a history that SetHistory has replaced stays replaced after a kill, with and without a
// checkpoint before. The request that was counted before is still counted, although its entry is gone.
func TestSetHistoryKilled(t *testing.T) {
	entries := []core.Entry{{At: noon, KeyID: "a", UserID: 1, Cost: 3}, {At: noon, KeyID: "a", UserID: 1, Cost: 4}}
	for _, checkpointed := range []bool{false, true} {
		dir := t.TempDir()
		s := openAlone(t, dir, Options{})
		known(t, s, "a")
		imported(t, s, "a", 300)
		consume(t, s, request("a", 1, 10, noon))
		if checkpointed {
			writeCheckpoint(t, s)
		}
		for _, id := range []core.CounterID{ofKey("a"), ofUser(1)} {
			if err := s.SetHistory(t.Context(), id, entries, time.Hour); err != nil {
				t.Fatalf("SetHistory: %v", err)
			}
		}
		appendHistory(t, s, ofKey("a"), entries[:1])
		for _, problem := range audit(s) {
			t.Error(problem)
		}
		abandon(t, s)

		s = openAlone(t, dir, Options{})
		if got := counterOf(t, s, ofKey("a")); !sameCounter(got, oneUsed()) {
			t.Errorf("the key's counter: got %+v, want the one request that was counted", got)
		}
		for id, want := range map[core.CounterID]int64{ofKey("a"): 3, ofUser(1): 2} {
			if got := allowedIn(t, s, id); got != want {
				t.Errorf("history of %+v: got %d allowed entries, want %d", id, got, want)
			}
		}
		for _, problem := range audit(s) {
			t.Error(problem)
		}
	}
}

func oneUsed() (c core.Counter) {
	c.Add(charge(1, noon))
	return c
}

// TestImportKilledAtAnyStep: after a kill at any step of a checkpoint, the store has all counters of SetCounters and
// whole histories.
func TestImportKilledAtAnyStep(t *testing.T) {
	for _, at := range []failpoint{failCheckpoint, failPages, failCommit, failCommitted, failPagesWritten, failMarked} {
		var h hook
		dir, after := t.TempDir(), t.TempDir()
		s := openAlone(t, dir, Options{failpoint: h.step})
		known(t, s, numbered("key", 200)...)
		allowed := imported(t, s, "key7", 100)
		consume(t, s, request("key7", 1, 10, noon))
		var ids []core.CounterID
		for _, id := range numbered("key", 200) {
			ids = append(ids, ofKey(id))
		}
		set(t, s, used(5), ids...)
		h.once(at, func() {
			copyDatabase(t, after, dir)
			copyEventLog(t, after, dir)
		})
		writeCheckpoint(t, s)
		if h.fn.Load() != nil {
			t.Fatalf("step %d was not reached", at)
		}

		s = openAlone(t, after, Options{})
		for _, id := range ids {
			if got := counterOf(t, s, id); !sameCounter(got, used(5)) {
				t.Errorf("step %d: %s: got %+v, want %+v", at, id.KeyID, got, used(5))
			}
		}
		if got := allowedIn(t, s, ofKey("key7")); got != allowed+1 {
			t.Errorf("step %d: history: got %d allowed entries, want %d", at, got, allowed+1)
		}
	}
}

// TestImportPower: with durability power, a power cut loses no imported history and no imported counter.
func TestImportPower(t *testing.T) {
	for seed := range uint64(6) {
		dir, after := t.TempDir(), t.TempDir()
		d := newLossyDisk()
		s := openAlone(t, dir, d.options(Options{Durability: Power}))
		known(t, s, "a")
		want := imported(t, s, "a", 50)
		set(t, s, used(9), ofKey("a"))
		want += imported(t, s, "a", 20)
		d.mu.Lock()
		left := d.cut(rand.New(rand.NewPCG(seed, 0)))
		d.mu.Unlock()
		copyDatabase(t, after, dir)
		s = openAlone(t, after, left.at(dir, after).options(Options{}))
		if got := allowedIn(t, s, ofKey("a")); got != want {
			t.Errorf("history: got %d allowed entries, want %d", got, want)
		}
		if got := counterOf(t, s, ofKey("a")); !sameCounter(got, used(9)) {
			t.Errorf("counter: got %+v, want what was set", got)
		}
	}
}

// TestImportSmallCache: an import sets more counters and appends to more histories than the counter cache holds.
func TestImportSmallCache(t *testing.T) {
	const keys = 9000
	s := openIn(t, t.TempDir(), Options{CounterCache: 1})
	names := numbered("key", keys)
	known(t, s, names...)
	var entries []core.Entry
	for i, name := range names {
		entries = append(entries, core.Entry{At: noon, KeyID: name, UserID: 1, Cost: int64(i)})
	}
	for from := 0; from < keys; from += core.MaxImport {
		appendHistory(t, s, ofUser(1), entries[from:from+core.MaxImport])
		var ids []core.CounterID
		for i, name := range names[from : from+core.MaxImport] {
			ids = append(ids, ofKey(name))
			appendHistory(t, s, ofKey(name), entries[from+i:from+i+1])
		}
		set(t, s, used(4), ids...)
	}
	for _, name := range names {
		if got := counterOf(t, s, ofKey(name)); !sameCounter(got, used(4)) {
			t.Fatalf("%s: got %+v, want what was set", name, got)
		}
	}
	if got := allowedIn(t, s, ofUser(1)); got != keys {
		t.Errorf("history of the user: got %d entries, want %d", got, keys)
	}
}

// TestImportFails: SetCounters fails on a full disk, and succeeds when the disk has space again.
func TestImportFails(t *testing.T) {
	var full atomic.Bool
	options := quiet
	options.fs = &hookedFS{FS: eventlog.OS, before: func(op fsOp) error {
		if full.Load() && op.kind == "write" {
			return syscall.ENOSPC
		}
		return nil
	}}
	s := openAlone(t, t.TempDir(), options)
	known(t, s, "a")
	full.Store(true)
	err := s.SetCounters(context.Background(), []core.CounterID{ofKey("a")}, []core.Counter{used(3)})
	if !isUnavailable(err) {
		t.Errorf("SetCounters: got %v, want ErrUnavailable", err)
	}
	full.Store(false)
	heal(t, s)
	set(t, s, used(4), ofKey("a"))
	if got := counterOf(t, s, ofKey("a")); !sameCounter(got, used(4)) {
		t.Errorf("counter: got %+v, want what was set", got)
	}
}

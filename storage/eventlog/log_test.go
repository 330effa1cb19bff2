package eventlog

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// written has the appended payloads by their positions.
type written map[int64]string

// small returns options for a log in memory with small segments.
func small(fs *memFS) Options {
	return Options{FS: fs, Dir: "log", SegmentSize: 1 << 10, Ahead: 1 << 10}
}

func mustOpen(t testing.TB, o Options) *Log {
	t.Helper()
	l, err := Open(o)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return l
}

// text appends a payload.
func text(payload string) func([]byte, int64) []byte {
	return func(b []byte, _ int64) []byte { return append(b, payload...) }
}

// put appends a payload and waits for it.
func put(t testing.TB, l *Log, w written, payload string) int64 {
	t.Helper()
	position, ticket, err := l.AppendAwaited(text(payload), Keep{})
	if err == nil {
		err = ticket.Wait()
	}
	if err != nil {
		t.Fatalf("append %.20q: %v", payload, err)
	}
	w[position] = payload
	return position
}

// putUntil appends until the log has n segments.
func putUntil(t testing.TB, l *Log, w written, n int) {
	t.Helper()
	for i := 0; len(l.Segments()) < n; i++ {
		put(t, l, w, fmt.Sprintf("%d of segment %d %s", i, n, strings.Repeat("x", i%90)))
	}
}

// replayed returns all records from Replay.
func replayed(l *Log, from int64) (written, error) {
	all, last := written{}, int64(0)
	err := l.Replay(from, func(position int64, payload []byte) error {
		if position <= last {
			return fmt.Errorf("position %d after %d", position, last)
		}
		all[position], last = string(payload), position
		return nil
	})
	return all, err
}

// wantAll fails unless Replay and Read return exactly the written records.
func wantAll(t testing.TB, l *Log, w written) {
	t.Helper()
	got, err := replayed(l, l.From())
	if err != nil || len(got) != len(w) {
		t.Errorf("Replay: got %d records, %v, want %d", len(got), err, len(w))
	}
	for position, want := range w {
		if got[position] != want {
			t.Errorf("Replay: at %d: got %.20q, want %.20q", position, got[position], want)
		}
		if b, err := l.Read(position, nil); err != nil || string(b) != want {
			t.Errorf("Read %d: got %.20q, %v, want %.20q", position, b, err, want)
		}
	}
}

// TestRoundTrip: when the log is opened again, each record is at its position: with both durabilities,
// in several segments, and in blocks of one record and of many records.
func TestRoundTrip(t *testing.T) {
	for _, power := range []bool{false, true} {
		o := Options{Dir: t.TempDir(), SegmentSize: 8 << 10, Power: power}
		w := written{}
		for round := range 4 {
			l := mustOpen(t, o)
			for i := range 60 {
				payload := strings.Repeat(string(rune('a'+i%26)), 1+i*i%900)
				if i%3 == 0 {
					position, err := l.Append(text(payload), Keep{})
					if err != nil {
						t.Fatal(err)
					}
					w[position] = payload
					continue
				}
				put(t, l, w, payload)
			}
			if err := l.Flush(); err != nil {
				t.Fatal(err)
			}
			wantAll(t, l, w)
			if round%2 == 0 {
				l.Abandon()
			} else if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		}
		put(t, mustOpen(t, o), w, "the last")
		l := mustOpen(t, o)
		wantAll(t, l, w)
		if got := len(l.Segments()); got < 10 {
			t.Errorf("got %d segments, want more", got)
		}
		l.Abandon()
		if r, err := Verify(o, nil); err != nil || len(r.Damage) > 0 || r.Records != len(w) {
			t.Errorf("Verify: got %+v, %v, want %d records", r, err, len(w))
		}
	}
}

// TestOverhead checks the overheads in doc.go: 21 bytes for a block and 8 for a record.
func TestOverhead(t *testing.T) {
	l := mustOpen(t, small(newMemFS()))
	w := written{}
	first := put(t, l, w, "0123456789")
	if got, want := put(t, l, w, "x")-first, int64(10+21+8); got != want {
		t.Errorf("a block of one record of 10 bytes: got %d bytes, want %d", got, want)
	}
	a, _ := l.Append(text("0123456789"), Keep{})
	b, _ := l.Append(text("x"), Keep{})
	if got, want := b-a, int64(10+8); got != want {
		t.Errorf("a record of 10 bytes: got %d bytes, want %d", got, want)
	}
}

// TestRecordSize: an empty or too long record is refused, and does not damage other records.
func TestRecordSize(t *testing.T) {
	o := small(newMemFS())
	l := mustOpen(t, o)
	w := written{}
	for _, n := range []int{0, MaxRecord + 1} {
		ofSize := func(b []byte, _ int64) []byte { return make([]byte, len(b)+n) } // append would copy a gigabyte
		if _, err := l.Append(ofSize, Keep{}); !errors.Is(err, ErrRecordSize) {
			t.Errorf("%d bytes: got error %v, want %v", n, err, ErrRecordSize)
		}
	}
	put(t, l, w, strings.Repeat("y", 32<<20))
	put(t, l, w, "z")
	l.Abandon()
	wantAll(t, mustOpen(t, o), w)
}

// TestPreallocatedSpace: with durability power, blocks overwrite preallocated zeros. The next Open does not take
// these zeros for a torn write, and uses them.
func TestPreallocatedSpace(t *testing.T) {
	fs := newMemFS()
	o := small(fs)
	o.Power, o.SegmentSize = true, 64<<10
	o.OnTorn = func(torn Torn) { t.Errorf("torn: %+v", torn) }
	w := written{}
	l := mustOpen(t, o)
	put(t, l, w, "first")
	size := len(fs.now[segmentName(1)].now)
	if room := size - dataOffset - int(l.Written()-1); room != 1<<10 {
		t.Errorf("got %d preallocated bytes, want %d", room, 1<<10)
	}
	for range 3 {
		l.Abandon()
		l = mustOpen(t, o)
		put(t, l, w, "more")
	}
	if got := len(fs.now[segmentName(1)].now); got != size {
		t.Errorf("the file has %d bytes, want %d as before", got, size)
	}
	wantAll(t, l, w)
}

// TestLeaderYields: a lone leader writes at once, but for one in probeEvery. After others joined a block, leaders yield
// until yieldsAfterShared of them were alone. A failure means that one caller waits longer than needed, or that each request of
// a proxy is a write of its own.
func TestLeaderYields(t *testing.T) {
	l := mustOpen(t, small(newMemFS()))
	defer l.Abandon()
	// alone counts the leaders that yield among n blocks with one waiter each.
	alone := func(n int) (yields int) {
		for range n {
			_, ticket, err := l.AppendAwaited(text("alone"), Keep{})
			if err = errors.Join(err, ticket.Wait()); err != nil {
				t.Fatal(err)
			}
			if ticket.yields {
				yields++
			}
		}
		return yields
	}
	if got := alone(probeEvery / 2); got != 0 {
		t.Errorf("%d of the first leaders yield, want none", got)
	}
	if got := alone(10 * (probeEvery + 2)); got != 10 {
		t.Errorf("%d lone leaders yield in ten times %d blocks, want 10", got, probeEvery+2)
	}
	_, leader, first := l.AppendAwaited(text("leader"), Keep{})
	_, follower, second := l.AppendAwaited(text("follower"), Keep{})
	if err := errors.Join(first, second, leader.Wait(), follower.Wait()); err != nil {
		t.Fatal(err)
	}
	if got := alone(probeEvery / 2); got != yieldsAfterShared {
		t.Errorf("%d leaders yield after a block with two waiters, want %d", got, yieldsAfterShared)
	}
}

// TestGroupCommit: concurrent appends get different positions in the order of the calls, and share
// blocks. When Wait returns, the record is in the log; with durability power, on disk.
func TestGroupCommit(t *testing.T) {
	for _, power := range []bool{false, true} {
		var blocks atomic.Int64
		o := Options{Dir: t.TempDir(), SegmentSize: 64 << 10, Power: power, OnWrite: func(int, time.Duration) { blocks.Add(1) }}
		l := mustOpen(t, o)
		var mu sync.Mutex
		w := written{}
		var group sync.WaitGroup
		for c := range 32 {
			group.Go(func() {
				for i := range 100 {
					payload := fmt.Sprint("caller ", c, " record ", i)
					mu.Lock()
					position, ticket, err := l.AppendAwaited(text(payload), Keep{})
					w[position] = payload
					mu.Unlock()
					if err = errors.Join(err, ticket.Wait()); err != nil {
						t.Error(err)
					}
					if !l.Safe(position) || power && l.Durable() <= position {
						t.Errorf("at %d: Wait returned before the record was safe", position)
					}
					if b, err := l.Read(position, nil); err != nil || string(b) != payload {
						t.Errorf("Read: got %q, %v, want %q", b, err, payload)
					}
					if i%10 == 0 {
						if err := errors.Join(l.Flush(), l.Sync()); err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
		group.Wait()
		if n := blocks.Load(); n >= 3200 {
			t.Errorf("got %d blocks for 3200 records, want fewer", n)
		}
		l.Abandon()
		wantAll(t, mustOpen(t, o), w)
	}
}

// TestSetPower: after a change of durability, Flush and Sync make earlier records as durable as later
// records.
func TestSetPower(t *testing.T) {
	fs := newMemFS()
	l, w := mustOpen(t, small(fs)), written{}
	position := put(t, l, w, "process")
	if !l.Safe(position) || l.Durable() > position {
		t.Errorf("process: got safe %v, durable %d", l.Safe(position), l.Durable())
	}
	l.SetPower(true)
	if err := errors.Join(l.Flush(), l.Sync()); err != nil || !l.Safe(position) {
		t.Errorf("power: got safe %v, %v", l.Safe(position), err)
	}
	if position = put(t, l, w, "power"); l.Durable() <= position {
		t.Errorf("power: Wait returned before the record was on disk")
	}
	fs.fault = func(op, _ string, b []byte) (int, error) {
		if op == "sync" {
			t.Error("process: synced")
		}
		return len(b), nil
	}
	l.SetPower(false)
	put(t, l, w, "process again")
}

// TestUnawaited: the size of records without a waiter is bounded. They are written with the next
// awaited record.
func TestUnawaited(t *testing.T) {
	l := mustOpen(t, small(newMemFS()))
	n := 0
	for ; l.TakesUnawaited(); n++ {
		if _, err := l.Append(text(strings.Repeat("x", 1000)), Keep{}); err != nil {
			t.Fatal(err)
		}
	}
	if n > 1100 || l.Written() != firstPosition {
		t.Errorf("got %d records of 1000 bytes and %d bytes written, want 1 MiB and 0", n, l.Written())
	}
	put(t, l, written{}, "awaited")
	if l.Written() < int64(n*1000) || !l.TakesUnawaited() {
		t.Errorf("after an awaited record: got %d bytes written", l.Written())
	}
}

// TestKeep: the retention of each segment survives a clean stop and a kill.
func TestKeep(t *testing.T) {
	for _, clean := range []bool{true, false} {
		o := small(newMemFS())
		l := mustOpen(t, o)
		keep := []Keep{{90 * 86400, 7200}, {3600, 0}, {5 * 86400, 5 * 86400}, {7200, 3600}}
		for i, k := range keep {
			for len(l.Segments()) <= i || l.Written()-l.Segments()[i].Base < o.SegmentSize {
				_, ticket, err := l.AppendAwaited(text(strings.Repeat("x", 100)), Keep{k.Until - rand.Int64N(3600), k.Hard - rand.Int64N(3600)})
				if err = errors.Join(err, ticket.Wait()); err != nil {
					t.Fatal(err)
				}
			}
		}
		if l.Abandon(); clean {
			l = mustOpen(t, o)
			_ = l.Close()
		}
		l = mustOpen(t, o)
		var got []Keep
		for _, g := range l.Segments() {
			got = append(got, g.Keep)
		}
		if !slices.Equal(got, keep) {
			t.Errorf("Keep: got %v, want %v", got, keep)
		}
	}
}

// TestAppendAllocates: Append allocates no memory, and Read allocates at most twice.
func TestAppendAllocates(t *testing.T) {
	o := small(newMemFS())
	o.SegmentSize = 1 << 30
	l := mustOpen(t, o)
	payload := bytes.Repeat([]byte("x"), 120)
	position := int64(0)
	n := testing.AllocsPerRun(100, func() {
		position, _ = l.Append(func(b []byte, _ int64) []byte { return append(b, payload...) }, Keep{})
	})
	if n > 0 {
		t.Errorf("Append: got %v allocations, want none", n)
	}
	if err := l.Flush(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 0, probe)
	if n := testing.AllocsPerRun(100, func() { _, _ = l.Read(position, buf) }); n > 2 {
		t.Errorf("Read: got %v allocations, want 2 at most", n)
	}
}

package eventlog

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
)

// segmentsLog is a log with six segments.
func segmentsLog(t *testing.T) (*memFS, Options, *Log, written) {
	t.Helper()
	fs, w := newMemFS(), written{}
	o := small(fs)
	l := mustOpen(t, o)
	putUntil(t, l, w, 6)
	return fs, o, l, w
}

// TestRemove: removed segments are gone, and Read returns ErrGone for their records. All other records
// stay, also when the log is opened again. The last segment is never removed.
func TestRemove(t *testing.T) {
	_, o, l, w := segmentsLog(t)
	list := l.Segments()
	if err := l.Remove(list[2].Base); err != nil {
		t.Fatal(err)
	}
	if got := l.Segments()[0].Base; got != list[2].Base {
		t.Errorf("the first segment: got %d, want %d", got, list[2].Base)
	}
	if _, err := l.Read(firstPosition+blockHeader, nil); !errors.Is(err, ErrGone) {
		t.Errorf("Read of a removed record: got error %v, want %v", err, ErrGone)
	}
	for position := range w {
		if position < list[2].Base {
			delete(w, position)
		}
	}
	putUntil(t, l, w, 6)
	l.Abandon()
	l = mustOpen(t, o)
	wantAll(t, l, w)
	if _, err := replayed(l, firstPosition); !errors.Is(err, ErrDamaged) {
		t.Errorf("Replay from a removed record: got error %v, want %v", err, ErrDamaged)
	}
	if err := l.Remove(l.End()); err != nil || len(l.Segments()) != 1 {
		t.Errorf("Remove of all segments: got %d segments, %v, want the last one", len(l.Segments()), err)
	}
	l.Abandon()
	mustOpen(t, o).Abandon()
}

// TestRemoveInterrupted: after a kill at any moment of Remove, the log opens, and begins with the old or
// the new oldest segment. A missing file from the oldest segment on is refused.
func TestRemoveInterrupted(t *testing.T) {
	fs, o, l, _ := segmentsLog(t)
	list := l.Segments()
	var left []*memFS
	fs.at = func(int) { left = append(left, fs.clone()) }
	if err := l.Remove(list[3].Base); err != nil {
		t.Fatal(err)
	}
	for i, fs := range append(left, fs) {
		o.FS = fs
		l, err := Open(o)
		if err != nil {
			t.Fatalf("at change %d: %v", i, err)
		}
		if got := l.Segments()[0].Base; got != list[0].Base && got != list[3].Base {
			t.Errorf("at change %d: the first segment: got %d, want %d or %d", i, got, list[0].Base, list[3].Base)
		}
		l.Abandon()
	}
	delete(fs.now, segmentName(list[3].Base))
	o.FS = fs
	if _, err := Open(o); !errors.Is(err, ErrDamaged) {
		t.Errorf("without the oldest: got error %v, want %v", err, ErrDamaged)
	}
}

// TestRemoveKilledThenPowerCut: the process is killed at any moment of Remove, and the power fails at any moment of the next Open. A
// failure means that Open removes files for a status that is not on disk yet.
func TestRemoveKilledThenPowerCut(t *testing.T) {
	fs, o, l, _ := segmentsLog(t)
	if err := errors.Join(l.Sync(), fs.SyncDir("")); err != nil {
		t.Fatal(err)
	}
	var killed, cut []*memFS
	fs.at = func(int) { killed = append(killed, fs.clone()) }
	if err := l.Remove(l.Segments()[3].Base); err != nil {
		t.Fatal(err)
	}
	for _, fs := range killed {
		random := rand.New(rand.NewPCG(1, 0))
		fs.at = func(int) {
			for range 20 {
				cut = append(cut, fs.powerCut(random))
			}
		}
		o.FS = fs
		mustOpen(t, o).Abandon()
	}
	for i, fs := range cut {
		o.FS = fs
		l, err := Open(o)
		if err != nil {
			t.Fatalf("power cut %d: %v", i, err)
		}
		l.Abandon()
	}
}

// TestReadDuringRemove: during a removal, Read gives the record or ErrGone, and Sync succeeds.
func TestReadDuringRemove(t *testing.T) {
	o := Options{Dir: t.TempDir(), SegmentSize: 1 << 10}
	l, w := mustOpen(t, o), written{}
	putUntil(t, l, w, 40)
	list := l.Segments()
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for position, want := range w {
				if b, err := l.Read(position, nil); err != nil && !errors.Is(err, ErrGone) || err == nil && string(b) != want {
					t.Errorf("Read: got %q, %v, want %q or %v", b, err, want, ErrGone)
				}
			}
		})
	}
	group.Go(func() {
		for _, g := range list {
			if err := errors.Join(l.Remove(g.Base), l.Sync()); err != nil {
				t.Error(err)
			}
		}
	})
	more := written{}
	for range 200 {
		put(t, l, more, "and meanwhile it is appended to")
	}
	group.Wait()
	l.Abandon()
}

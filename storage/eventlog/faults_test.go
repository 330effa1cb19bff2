package eventlog

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// TestTemporaryFaults: when the disk is full or descriptors have run out, waiters get ErrTemporary, later records are refused without
// another attempt, and OnFailure is called once. The log that is opened again has every earlier record, none that was
// refused, and no torn write.
func TestTemporaryFaults(t *testing.T) {
	for _, test := range []struct {
		op    string
		errno syscall.Errno
		short int // bytes that are written nevertheless
		full  bool
	}{
		{"write", syscall.ENOSPC, 0, false}, {"write", syscall.ENOSPC, 10, false}, {"write", syscall.EDQUOT, 40, false}, {"write", syscall.EFBIG, 1, false},
		{"write", syscall.ENOSPC, 30, true}, {"open", syscall.EMFILE, 0, true}, {"open", syscall.ENFILE, 0, true}, {"rename", syscall.ENOSPC, 0, true},
		{"syncdir", syscall.EMFILE, 0, true},
	} {
		for _, power := range []bool{false, true} {
			name := fmt.Sprint(test.op, " ", test.errno, " ", test.short, " ", test.full, " ", power)
			t.Run(name, func(t *testing.T) { temporaryFault(t, test.op, test.errno, test.short, test.full, power) })
		}
	}
}

// temporaryFault is a case of TestTemporaryFaults. With full, the fault comes when a segment begins.
func temporaryFault(t *testing.T, op string, errno syscall.Errno, short int, full, power bool) {
	fs, w := newMemFS(), written{}
	o := small(fs)
	o.Power = power
	var failures []error
	o.OnFailure = func(err error) { failures = append(failures, err) }
	o.OnTorn = func(torn Torn) { t.Errorf("got the torn write %+v", torn) }
	l := mustOpen(t, o)
	put(t, l, w, "before")
	for full && l.Written()-1 < o.SegmentSize {
		put(t, l, w, "fill the segment")
	}
	attempts := 0
	fs.fault = func(name, _ string, b []byte) (int, error) {
		if name != op {
			return len(b), nil
		}
		attempts++
		return min(short, len(b)), errno
	}
	_, ticket, err := l.AppendAwaited(text("while it fails"), Keep{})
	if err = errors.Join(err, ticket.Wait()); !errors.Is(err, ErrTemporary) || !errors.Is(err, errno) {
		t.Errorf("Wait: got error %v, want %v", err, ErrTemporary)
	}
	before := attempts
	fs.fault = nil
	for range 10 {
		if _, err := l.Append(text("refused"), Keep{}); !errors.Is(err, ErrTemporary) {
			t.Fatalf("Append: got error %v, want %v", err, ErrTemporary)
		}
		if err := l.Ready(); !errors.Is(err, ErrTemporary) {
			t.Fatalf("Ready: got error %v, want %v", err, ErrTemporary)
		}
	}
	if attempts != before || len(failures) != 1 || !errors.Is(failures[0], errno) {
		t.Errorf("got %d more attempts, and the failures %v, want none and one", attempts-before, failures)
	}
	if err := l.Close(); !errors.Is(err, ErrTemporary) {
		t.Errorf("Close: got error %v, want %v", err, ErrTemporary)
	}
	l = mustOpen(t, o)
	wantAll(t, l, w)
	if got, err := replayed(l, firstPosition); err != nil || len(got) != len(w) {
		t.Errorf("opened again: got %d records, %v, want %d", len(got), err, len(w))
	}
	put(t, l, w, "after")
	l.Abandon()
	wantAll(t, mustOpen(t, o), w)
}

// TestFinalFaults: after any other error, and after a failed sync, every call fails: a second sync may
// succeed without the bytes of the first.
func TestFinalFaults(t *testing.T) {
	for _, test := range []struct {
		op    string
		errno syscall.Errno
	}{{"write", syscall.EIO}, {"sync", syscall.EIO}, {"sync", syscall.ENOSPC}, {"syncdir", syscall.ENOSPC}} {
		fs := newMemFS()
		o := small(fs)
		o.Power = true
		states := 0
		o.OnFailure = func(err error) { states++ }
		l := mustOpen(t, o)
		w := written{}
		put(t, l, w, "before")
		for test.op == "syncdir" && l.Written()-1 < o.SegmentSize {
			put(t, l, w, "fill the segment")
		}
		fs.fault = func(op, _ string, b []byte) (int, error) {
			if op == test.op {
				return 0, test.errno
			}
			return len(b), nil
		}
		_, ticket, err := l.AppendAwaited(text("fails"), Keep{})
		if err = errors.Join(err, ticket.Wait()); !errors.Is(err, test.errno) || errors.Is(err, ErrTemporary) {
			t.Errorf("%v of %s: Wait: got error %v", test.errno, test.op, err)
		}
		fs.fault = nil
		if _, err := l.Append(text("x"), Keep{}); !errors.Is(err, test.errno) {
			t.Errorf("%v of %s: Append: got error %v", test.errno, test.op, err)
		}
		if err := l.Close(); !errors.Is(err, test.errno) || states != 1 {
			t.Errorf("%v of %s: Close: got error %v, %d states, want 1", test.errno, test.op, err, states)
		}
		o.FS = fs.clone()
		l = mustOpen(t, o)
		if b, err := l.Read(firstPosition+blockHeader, nil); err != nil || string(b) != "before" {
			t.Errorf("opened again: got %q, %v", b, err)
		}
	}
}

// TestSyncOfTheOwnerFails: the waiters of a block get an error when a sync by the owner has failed, also
// when the next sync succeeds.
func TestSyncOfTheOwnerFails(t *testing.T) {
	fs := newMemFS()
	o := small(fs)
	l := mustOpen(t, o)
	put(t, l, written{}, "written")
	once := true
	fs.fault = func(op, _ string, b []byte) (int, error) {
		if op == "sync" && once {
			once = false
			return 0, syscall.EIO
		}
		return len(b), nil
	}
	if err := l.Sync(); !errors.Is(err, syscall.EIO) {
		t.Errorf("Sync: got error %v", err)
	}
	if _, err := l.Append(text("x"), Keep{}); !errors.Is(err, syscall.EIO) || !errors.Is(l.Sync(), syscall.EIO) {
		t.Errorf("Append: got error %v", err)
	}
}

// TestManyWhileFull: many callers append when the disk gets full. The log that is opened again has each record whose caller got no
// error, and no other one.
func TestManyWhileFull(t *testing.T) {
	fs := newMemFS()
	var writes atomic.Int64
	fs.fault = func(op, _ string, b []byte) (int, error) {
		if op == "write" && writes.Add(1) > 300 {
			return len(b) / 2, syscall.ENOSPC
		}
		return len(b), nil
	}
	o := small(fs)
	l := mustOpen(t, o)
	var mu sync.Mutex
	w := written{}
	var group sync.WaitGroup
	for c := range 16 {
		group.Go(func() {
			for i := range 200 {
				payload := fmt.Sprint(c, " ", i, strings.Repeat("z", i%50))
				position, ticket, err := l.AppendAwaited(text(payload), Keep{})
				if err == nil {
					err = ticket.Wait()
				}
				if err == nil {
					mu.Lock()
					w[position] = payload
					mu.Unlock()
				} else if !errors.Is(err, ErrTemporary) {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	if err := l.Flush(); !errors.Is(err, ErrTemporary) || len(w) == 0 {
		t.Fatalf("got %v, %d records, want %v and some", err, len(w), ErrTemporary)
	}
	l.Abandon()
	fs.fault = nil
	l = mustOpen(t, o)
	wantAll(t, l, w)
	if got, err := replayed(l, firstPosition); err != nil || len(got) != len(w) {
		t.Errorf("got %d records, %v, want %d", len(got), err, len(w))
	}
}

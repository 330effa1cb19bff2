package eventlog

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
)

// TestTemporaryFaults: when the disk is full or descriptors have run out, waiters get ErrTemporary,
// new records are refused without another attempt, and OnState is called once. After the fault,
// every appended record is in the log, also the records whose waiters got the error.
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
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { temporaryFault(t, test.op, test.errno, test.short, test.full, power) })
			})
		}
	}
}

// temporaryFault is a case of TestTemporaryFaults. With full, the fault comes when a segment begins.
func temporaryFault(t *testing.T, op string, errno syscall.Errno, short int, full, power bool) {
	fs, w := newMemFS(), written{}
	o := small(fs)
	o.Power = power
	var states []error
	o.OnState = func(err error) { states = append(states, err) }
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
	fail := func(payload string) {
		position, ticket, err := l.AppendAwaited(text(payload), Keep{})
		if err != nil {
			t.Fatal(err)
		}
		w[position] = payload
		if err := ticket.Wait(); !errors.Is(err, ErrTemporary) || !errors.Is(err, errno) {
			t.Errorf("Wait: got error %v, want %v", err, ErrTemporary)
		}
	}
	fail("while it fails")
	before := attempts
	for range 1000 {
		if _, err := l.Append(text("refused"), Keep{}); !errors.Is(err, ErrTemporary) {
			t.Fatalf("Append: got error %v, want %v", err, ErrTemporary)
		}
		if err := l.Ready(); !errors.Is(err, ErrTemporary) {
			t.Fatalf("Ready: got error %v, want %v", err, ErrTemporary)
		}
	}
	if attempts != before {
		t.Errorf("got %d attempts at once, want none", attempts-before)
	}
	killedNow := fs.clone()
	for i := 1; i <= 3; i++ {
		sleep()
		if err := l.Ready(); !errors.Is(err, ErrTemporary) || attempts != before+i {
			t.Errorf("Ready later: got %v, %d attempts, want %v, %d", err, attempts, ErrTemporary, before+i)
		}
	}
	fs.fault = nil
	sleep()
	if err := l.Ready(); err != nil {
		t.Errorf("Ready after the fault: got error %v", err)
	}
	wantAll(t, l, w)
	put(t, l, w, "after")
	l.Abandon()
	wantAll(t, mustOpen(t, o), w)
	if len(states) != 2 || !errors.Is(states[0], errno) || states[1] != nil {
		t.Errorf("states: got %v, want one error and nil", states)
	}
	o.FS = killedNow
	l = mustOpen(t, o)
	if got, err := replayed(l, firstPosition); err != nil || len(got) != len(w)-2 {
		t.Errorf("killed during the fault: got %d records, %v, want the %d earlier ones", len(got), err, len(w)-2)
	}
}

// sleep sleeps for retryEvery on the clock of synctest.
func sleep() { <-afterRetry() }

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
		o.OnState = func(err error) { states++ }
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

// TestManyWhileFull: many callers append while the disk is sometimes full. Each record with a position
// is in the log at that position when the disk has room again.
func TestManyWhileFull(t *testing.T) {
	fs := newMemFS()
	var full atomic.Bool
	fs.fault = func(op, _ string, b []byte) (int, error) {
		if full.Load() && op == "write" {
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
				full.Store((c+i)%5 == 0)
				payload := fmt.Sprint(c, " ", i, strings.Repeat("z", i%50))
				mu.Lock()
				position, ticket, err := l.AppendAwaited(text(payload), Keep{})
				if err == nil {
					w[position] = payload
				}
				mu.Unlock()
				if err == nil {
					err = ticket.Wait()
				} else {
					l.forgetTry()
					_ = l.Ready()
				}
				if err != nil && !errors.Is(err, ErrTemporary) {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	full.Store(false)
	l.forgetTry()
	if err := l.Flush(); err != nil {
		t.Fatal(err)
	}
	wantAll(t, l, w)
	l.Abandon()
	wantAll(t, mustOpen(t, o), w)
	t.Logf("%d of 3200 records were taken", len(w))
}

// TestCloseWhileFull: Close tries to write once more, and returns an error when records are lost.
func TestCloseWhileFull(t *testing.T) {
	for _, room := range []bool{true, false} {
		fs := newMemFS()
		o := small(fs)
		l := mustOpen(t, o)
		w := written{}
		put(t, l, w, "before")
		fs.fault = func(op, _ string, b []byte) (int, error) { return 0, syscall.ENOSPC }
		_, ticket, _ := l.AppendAwaited(text("pending"), Keep{})
		if err := ticket.Wait(); !errors.Is(err, ErrTemporary) {
			t.Fatalf("Wait: got error %v", err)
		}
		if room {
			fs.fault = nil
		}
		if err := l.Close(); (err == nil) != room {
			t.Errorf("Close with room %v: got error %v", room, err)
		}
	}
}

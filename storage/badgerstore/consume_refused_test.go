package badgerstore

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/eventlog"
)

// logLines collects the lines of a log.
type logLines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// lines returns the number of occurrences of a text.
func (l *logLines) lines(text string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

func (l *logLines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// The log lines when the event log begins to refuse requests, and when it takes requests again.
const (
	beginsToRefuse = "requests are refused until"
	takesAgain     = "requests are counted"
)

// logFaults are temporary faults of the event log.
var logFaults = []struct {
	name    string
	errno   syscall.Errno
	once    bool
	matches func(fsOp) bool
}{
	{"a write without room, once", syscall.ENOSPC, true, func(op fsOp) bool { return op.isBlock() }},
	{"writes without room for a while", syscall.ENOSPC, false, func(op fsOp) bool { return op.kind == "write" }},
	{"a file over its limit for a while", syscall.EFBIG, false, func(op fsOp) bool { return op.isBlock() }},
	{"a segment that cannot be opened", syscall.EMFILE, false, func(op fsOp) bool { return op.kind == "open" }},
	{"a directory that cannot be opened, once", syscall.EMFILE, true, func(op fsOp) bool { return op.kind == "syncdir" }},
	{"a directory that cannot be opened", syscall.ENFILE, false, func(op fsOp) bool { return op.kind == "syncdir" }},
}

// TestEventLogRefuses: the store refuses requests during a temporary fault, and counts requests again without a restart.
// The log has one line for each change. Every answered request is counted, and no request that was never sent. A failure
// means that a full disk needs a restart, or loses or invents counts.
func TestEventLogRefuses(t *testing.T) {
	for _, fault := range logFaults {
		for _, d := range []Durability{Process, Power} {
			t.Run(fmt.Sprint(fault.name, " ", d), func(t *testing.T) {
				var broken atomic.Bool
				o := Options{Durability: d, segmentSize: 2 << 10, fs: &hookedFS{FS: eventlog.OS, before: func(op fsOp) error {
					if !fault.matches(op) || !broken.Load() || fault.once && !broken.CompareAndSwap(true, false) {
						return nil
					}
					return fault.errno
				}}}
				testRefusal(t, o, &broken)
			})
		}
	}
}

// testRefusal uses a store from many goroutines. It breaks the event log until some requests were refused, and then
// repairs it.
func testRefusal(t *testing.T, o Options, broken *atomic.Bool) {
	const callers, enough = 8, 20
	var logged logLines
	o.Logger = logged.logger()
	dir := t.TempDir()
	s := openIn(t, dir, o)
	known(t, s, numbered("key", callers)...)
	var sent, answered [callers]atomic.Int64
	var refused, after atomic.Int64
	var mended atomic.Bool
	var group sync.WaitGroup
	for i := range callers {
		group.Go(func() {
			key := fmt.Sprint("key", i)
			for n := 0; n < 200 || after.Load() < enough; n++ {
				if n == 50 && i == 0 {
					broken.Store(true)
				}
				sent[i].Add(1)
				c := request(key, int64(i%4+1), endless, noon)
				c.Shared = rand.IntN(2) == 0
				switch v, err := s.Consume(t.Context(), c); {
				case err == nil && v.Allowed:
					answered[i].Add(1)
					if mended.Load() {
						after.Add(1)
					}
				case isUnavailable(err):
					if refused.Add(1) > enough && broken.CompareAndSwap(true, false) {
						waitUntil(t, "the store takes requests again", func() bool { return logged.lines(takesAgain) > 0 })
					}
					mended.Store(!broken.Load())
				default:
					t.Errorf("Consume: got %+v, %v", v, err)
					return
				}
			}
		})
	}
	group.Wait()
	if refused.Load() == 0 || logged.lines(beginsToRefuse) != 1 || logged.lines(takesAgain) != 1 || logged.lines("\n") != 2 {
		t.Errorf("got %d refused, logged:\n%s\nwant one line that requests are refused, and one line that requests are counted again", refused.Load(), logged.text.String())
	}
	t.Logf("%d refused", refused.Load())
	for _, kill := range []bool{true, false} {
		for i := range callers {
			of := ofKey(fmt.Sprint("key", i))
			used := counterOf(t, s, of).Requests[core.Month]
			if used < answered[i].Load() || used > sent[i].Load() {
				t.Errorf("%v: got %d used, want at least %d answered and at most %d sent", of, used, answered[i].Load(), sent[i].Load())
			}
			wantUsed(t, s, of, used)
		}
		for _, problem := range audit(s) {
			t.Error(problem)
		}
		if kill {
			abandon(t, s)
			s = openAlone(t, dir, o)
		}
	}
}

// TestResumesWithoutRequest: after a fault of the event log, the background makes the store take requests again within a
// second, without waiting for a request.
func TestResumesWithoutRequest(t *testing.T) {
	var broken atomic.Bool
	var logged logLines
	s := openIn(t, t.TempDir(), Options{Logger: logged.logger(), fs: &hookedFS{FS: eventlog.OS, before: func(op fsOp) error {
		if broken.Load() && op.kind == "write" {
			return syscall.ENOSPC
		}
		return nil
	}}})
	known(t, s, "key")
	broken.Store(true)
	if _, err := s.Consume(t.Context(), request("key", 1, endless, noon)); !isUnavailable(err) {
		t.Fatalf("Consume: got error %v, want unavailable", err)
	}
	broken.Store(false)
	waitUntil(t, "the store takes requests by itself", func() bool { return logged.lines(takesAgain) > 0 })
	consume(t, s, request("key", 1, endless, noon))
	wantUsed(t, s, ofKey("key"), 1)
}

// peekOne returns a copy of one counter.
func peekOne(s *Store, of ref) (counterState, error) {
	states, err := s.peek([]ref{of})
	if err != nil {
		return counterState{}, err
	}
	return states[0], nil
}

// inMemory returns the current state of a counter, durable or not.
func inMemory(t *testing.T, s *Store, of ref) core.Counter {
	t.Helper()
	c, err := peekOne(s, of)
	if err != nil {
		t.Fatalf("peek: %v", err)
	}
	return c.Counter
}

// TestRefusedLeavesCounters: a request that the event log refuses in decide does not change the counters, and a denial is
// counted as omitted. A failure means that counters include requests without an event: a kill would lower the counters.
func TestRefusedLeavesCounters(t *testing.T) {
	var broken atomic.Bool
	s := openAlone(t, t.TempDir(), Options{Logger: quiet.Logger, fs: &hookedFS{FS: eventlog.OS, before: func(op fsOp) error {
		if broken.Load() && op.kind == "write" {
			return syscall.ENOSPC
		}
		return nil
	}}})
	known(t, s, "key", "other")
	consume(t, s, request("key", 1, endless, noon))
	broken.Store(true)
	if _, err := s.Consume(t.Context(), request("other", 1, endless, noon)); !errors.Is(err, eventlog.ErrTemporary) {
		t.Fatalf("Consume: got error %v, want %v", err, eventlog.ErrTemporary)
	}
	key, user := keyRef(t, s, "key"), userRef(t, s, 1)
	for _, later := range []int{0, 1} { // in the same window, and in the next one
		before := [2]core.Counter{inMemory(t, s, key), inMemory(t, s, user)}
		c := shared(request("key", 1, endless, noon.AddDate(0, 2*later, later)))
		c.RequestID = "id"
		if d := s.decide(c, key, user, lookedUp{}); !errors.Is(d.err, eventlog.ErrTemporary) || d.appended {
			t.Errorf("decide: got %+v, want %v", d, eventlog.ErrTemporary)
		}
		for i, of := range []ref{key, user} {
			if got := inMemory(t, s, of); !sameCounter(got, before[i]) {
				t.Errorf("%v: got %+v, want %+v as before", of, got, before[i])
			}
		}
	}
	d := s.decide(request("key", 1, 0, noon), key, user, lookedUp{})
	if got := inMemory(t, s, key); d.err != nil || d.result.Allowed || got.DeniedOmitted != 1 {
		t.Errorf("decide over the limit: got %+v, %d omitted, want denied and 1", d, got.DeniedOmitted)
	}
	broken.Store(false)
	heal(t, s)
	consume(t, s, request("key", 1, endless, noon))
	wantUsed(t, s, ofKey("key"), 2)
	wantUsed(t, s, ofKey("other"), 0)
}

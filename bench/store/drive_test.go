package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore"
)

// bench is an open store with a service over it.
type bench struct {
	dir     string
	keys    int
	store   *badgerstore.Store
	service *service.Service
	costs   []core.MeterCost // of each request on other meters than requests
	priced  bool             // each request needs the scope read, and its price decides
	allowed int64            // allowed requests so far
	before  int64            // sum of the counters at the beginning
}

// open opens the store in a directory. keys is the number of its keys, cache the size of the
// key cache.
func open(tb testing.TB, dir string, keys, cache int) *bench {
	tb.Helper()
	s, err := badgerstore.Open(dir, quiet)
	if err != nil {
		tb.Fatal(err)
	}
	b := &bench{dir: dir, keys: keys, store: s, service: newService(s, cache)}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Errorf("Close: %v", err)
		}
	})
	return b
}

// newService returns a service over a store, with a key cache.
func newService(s *badgerstore.Store, cache int) *service.Service {
	service, t := service.New(s, service.Config{}), service.DefaultTunables()
	t.KeyCache = cache
	service.Tune(t)
	s.SetCounterCache(2 * cache) // the server sizes it for keys and users likewise
	return service
}

// request returns a request with a key.
func request(secret string) service.Request {
	return service.Request{Secret: secret, Endpoint: "/v1/items/17", Method: "GET", IP: "192.0.2.17", Cost: 1}
}

// warm reads every key once, by requests with cost 0.
func (b *bench) warm(tb testing.TB) {
	tb.Helper()
	var next atomic.Int64
	var group sync.WaitGroup
	for range 64 {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < b.keys; i = int(next.Add(1)) - 1 {
				r := request(secret(i))
				r.Cost = 0
				if d, err := b.service.Validate(context.Background(), account, r); err != nil || !d.Allowed() {
					tb.Errorf("warm: got %v, %v, want allowed", d.Outcome, err)
					return
				}
			}
		})
	}
	group.Wait()
	b.before = b.counted(tb)
}

// counted returns the sum of all counters.
func (b *bench) counted(tb testing.TB) (sum int64) {
	tb.Helper()
	var ids []core.CounterID
	for i := range b.keys {
		ids = append(ids, core.CounterID{Account: account, KeyID: keyID(i)})
		if len(ids) == 10_000 || i == b.keys-1 {
			list, err := b.store.Counters(context.Background(), ids)
			if err != nil {
				tb.Fatalf("Counters: %v", err)
			}
			for _, c := range list {
				sum += c.Usage(core.MeterRequests, core.Year, nil, time.Now()).Used
			}
			ids = ids[:0]
		}
	}
	return sum
}

// check fails unless the counters have grown by the number of allowed requests.
func (b *bench) check(tb testing.TB) {
	tb.Helper()
	if got := b.counted(tb) - b.before; got != b.allowed {
		tb.Errorf("%d requests were allowed and %d counted", b.allowed, got)
	}
}

// picker returns the function that draws the keys of a caller.
type picker func(caller int) func() int

// uniform draws each key equally often.
func uniform(keys int) picker {
	return func(caller int) func() int {
		r := rand.New(rand.NewPCG(17, uint64(caller)))
		return func() int { return r.IntN(keys) }
	}
}

const (
	zipfExponent = 1.1     // the nth key has 1/n^zipfExponent of the first key's share
	zipfDrawn    = 1 << 21 // keys drawn in advance: drawing costs as much as deciding
)

// zipf draws a few keys often and most keys rarely. Frequent keys are spread over the store.
func zipf(keys int) picker {
	r := rand.New(rand.NewPCG(17, 4))
	order := r.Perm(keys)
	law := rand.NewZipf(r, zipfExponent, 1, uint64(keys-1))
	drawn := make([]int32, zipfDrawn)
	for i := range drawn {
		drawn[i] = int32(order[law.Uint64()])
	}
	return func(caller int) func() int {
		at := caller * 7919
		return func() int {
			at++
			return int(drawn[at%zipfDrawn])
		}
	}
}

// sweep draws the keys in order. Each caller draws its part of the keys.
func sweep(keys, callers int) picker {
	part := keys / callers
	return func(caller int) func() int {
		at := -1
		return func() int { at++; return caller*part + at%part }
	}
}

// one always draws the same key.
func one(i int) picker { return func(int) func() int { return func() int { return i } } }

// load says how drive loads a service.
type load struct {
	callers int
	pick    picker
	want    service.Outcome
	n       int64         // number of decisions, if lasting is 0
	lasting time.Duration // duration of the load
}

// figures are the results of a load.
type figures struct {
	n       int64
	elapsed time.Duration
	cpu     time.Duration
	waits   histogram
	mallocs uint64
	grown   int64
	written int64
}

// drive makes decisions and returns their figures. A wrong decision is an error.
func (b *bench) drive(l load) (f figures, err error) {
	size, written, cpu, mallocs := sizeOf(b.dir), writtenBytes(), usedCPU(), allocated()
	todo := &work{}
	todo.left.Store(l.n)
	if l.lasting > 0 {
		todo.left.Store(1 << 62)
		defer time.AfterFunc(l.lasting, func() { todo.left.Store(0) }).Stop()
	}
	callers := make([]caller, l.callers)
	start := time.Now()
	var group sync.WaitGroup
	for i := range callers {
		group.Go(func() { callers[i].run(b, todo, l.pick(i), l.want) })
	}
	group.Wait()
	f = figures{elapsed: time.Since(start), cpu: usedCPU() - cpu, mallocs: allocated() - mallocs,
		written: writtenBytes() - written, grown: sizeOf(b.dir) - size}
	for i := range callers {
		f.waits.merge(&callers[i].waits)
		f.n += callers[i].n
		err = errors.Join(err, callers[i].err)
	}
	if l.want == service.Allowed {
		b.allowed += f.n
	}
	return f, err
}

// work is the number of remaining decisions, shared by the callers.
type work struct{ left atomic.Int64 }

// share is the number of decisions that a caller takes at once. It times one of them.
const share = 16

// take returns the number of decisions that a caller makes next, 0 when none are left.
func (w *work) take() int64 { return min(share, w.left.Add(-share)+share) }

// caller makes decisions in turn.
type caller struct {
	n       int64
	waits   histogram
	secrets secretWriter
	err     error
}

func (c *caller) run(b *bench, todo *work, next func() int, want service.Outcome) {
	for n := todo.take(); n > 0; n = todo.take() {
		for i := range n {
			if c.err = b.decide(c.secrets.of(next()), want, i == 0, &c.waits); c.err != nil {
				todo.left.Store(0)
				return
			}
			c.n++
		}
	}
}

var readScope = []string{"read"}

// decide makes a decision, and fails when the outcome is wrong.
func (b *bench) decide(secret string, want service.Outcome, timed bool, waits *histogram) error {
	r := request(secret)
	if r.Costs = b.costs; b.priced {
		r.CostByPrice, r.Scopes = true, readScope
	}
	var start time.Time
	if timed {
		start = time.Now()
	}
	d, err := b.service.Validate(context.Background(), account, r)
	if timed {
		waits.add(time.Since(start))
	}
	if err != nil || d.Outcome != want {
		return fmt.Errorf("key %s: got %v, %v, want %v", secret, d.Outcome, err, want)
	}
	return nil
}

// report reports the figures of a benchmark.
func (f *figures) report(b *testing.B) {
	n := float64(max(f.n, 1))
	b.ReportMetric(n/f.elapsed.Seconds(), "decisions/s")
	b.ReportMetric(f.cpu.Seconds()*1e6/n, "cpu-µs/op")
	b.ReportMetric(float64(f.waits.quantile(0.5))/1e3, "p50-µs")
	b.ReportMetric(float64(f.waits.quantile(0.99))/1e3, "p99-µs")
	b.ReportMetric(float64(f.grown)/n, "disk-B/op")
	b.ReportMetric(float64(f.written)/n, "written-B/op")
}

// usedCPU returns the CPU time of this process.
func usedCPU() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// allocated returns the number of heap allocations so far.
func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}

// sizeOf returns the disk space of a directory in bytes. It skips files that are deleted
// during the walk.
func sizeOf(dir string) (sum int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if info, err := d.Info(); err == nil {
			sum += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return nil
	})
	return sum
}

// writtenBytes returns the bytes that this process has caused to be written to disk.
func writtenBytes() int64 {
	text, err := os.ReadFile("/proc/self/io")
	if err != nil {
		return 0
	}
	return numberAfter(string(text), "write_bytes:")
}

// numberAfter returns the number after a word at the beginning of a line, 0 without one.
func numberAfter(text, word string) int64 {
	_, rest, _ := strings.Cut("\n"+text, "\n"+word)
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	n, _ := strconv.ParseInt(fields[0], 10, 64)
	return n
}

// Pickers draw existing keys. uniform and sweep draw each key about equally often, zipf draws a
// few keys far more often.
func TestPickers(t *testing.T) {
	const keys, draws = 640, 64_000
	for name, c := range map[string]struct {
		pick  picker
		least int // draws of the key that is drawn most
		most  int
	}{"uniform": {uniform(keys), 100, 160}, "zipf": {zipf(keys), 5_000, 20_000}, "sweep": {sweep(keys, 1), 100, 100}, "one": {one(7), draws, draws}} {
		next, drawn := c.pick(0), make([]int, keys)
		for range draws {
			drawn[next()]++ // panics beyond the keys
		}
		if got := slices.Max(drawn); got < c.least || got > c.most {
			t.Errorf("%s: got %d draws of one key, want %d to %d", name, got, c.least, c.most)
		}
	}
	seen := map[int]bool{}
	for caller := range 64 {
		next := sweep(keys, 64)(caller)
		for range keys / 64 {
			seen[next()] = true
		}
	}
	if len(seen) != keys {
		t.Errorf("64 callers sweep %d keys, want %d", len(seen), keys)
	}
}

// The callers share out the decisions: none is lost, and none is made twice.
func TestWorkIsSharedOut(t *testing.T) {
	for _, n := range []int64{1, 16, 17, 1000} {
		w, sum := new(work), int64(0)
		w.left.Store(n)
		for took := w.take(); took > 0; took = w.take() {
			sum += took
		}
		if sum != n {
			t.Errorf("of %d decisions %d were taken", n, sum)
		}
	}
}

// numberAfter finds the line of exactly the word.
func TestNumberAfter(t *testing.T) {
	text := "rchar: 5\nwrite_bytes: 4096\ncancelled_write_bytes: 7\nVmRSS:\t  12 kB\n"
	for word, want := range map[string]int64{"write_bytes:": 4096, "VmRSS:": 12, "rchar:": 5, "none:": 0} {
		if got := numberAfter(text, word); got != want {
			t.Errorf("%s: got %d, want %d", word, got, want)
		}
	}
}

// drive counts what the store counts, so that the check at the end of a benchmark notices a
// lost or doubled request. A wrong outcome is an error.
func TestDrive(t *testing.T) {
	dir := t.TempDir()
	if err := withKeys(100)(dir); err != nil {
		t.Fatal(err)
	}
	b := open(t, dir, 100, 1000)
	b.warm(t)
	f, err := b.drive(load{callers: 8, pick: uniform(100), want: service.Allowed, n: 1000})
	if err != nil || f.n != 1000 || f.waits.n == 0 {
		t.Errorf("drive: got %d decisions, %d timed, %v, want 1000 and some", f.n, f.waits.n, err)
	}
	b.check(t)
	if _, err := b.drive(load{callers: 2, pick: uniform(100), want: service.Denied, n: 10}); err == nil {
		t.Error("wrong outcomes: got no error")
	}
	if got := b.counted(t); got == b.before+b.allowed {
		t.Errorf("got %d counted, want the requests with wrong outcomes too", got)
	}
}

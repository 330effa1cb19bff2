// Package store has the benchmarks of decisions: core over badgerstore, without HTTP.
// bench/run store runs them. To run one by hand:
//
//	go -C bench test ./store -run '^$' -bench Decide/keys=10000/uniform -benchmem
//
// Every benchmark checks the outcome of each decision. At the end it compares the counters
// with the number of allowed requests. Beside the columns of package testing, the
// benchmarks report:
//
//	decisions/s   decisions per second of all callers together
//	cpu-µs/op     CPU time per decision, with the work in the background and the
//	              benchmark itself
//	p50-µs p99-µs latency of a caller, from one decision in 16
//	disk-B/op     growth of the directory per decision
//	written-B/op  bytes written to disk per decision, including bytes written again
//
// A store with a million keys takes minutes to fill. The first run fills it in the
// directory of the environment variable BENCH_FIXTURES. Each benchmark uses a copy.
package store

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore"
)

var sustained = flag.Duration("sustained", 10*time.Second, "duration of the load of BenchmarkSustained")

const (
	million         = 1_000_000  // keys of the large store
	largeCache      = 1_200_000  // a key cache with room for all of these keys
	historyEntries  = 10_000_000 // of BenchmarkOpen
	afterCheckpoint = 100_000    // decisions of BenchmarkOpen in the log ahead of the checkpoint
)

// filled returns the directory of a copy of a store with a number of keys.
func filled(tb testing.TB, keys int) string {
	tb.Helper()
	return fixture(tb, strconv.Itoa(keys), withKeys(keys))
}

// distribution is how requests spread over keys.
type distribution struct {
	name string
	pick func(keys int) picker
}

// BenchmarkDecide decides requests that are allowed. All keys are in the cache.
func BenchmarkDecide(b *testing.B) {
	for _, c := range []struct {
		keys          int
		distributions []distribution
	}{{10_000, []distribution{{"uniform", uniform}}}, {million, []distribution{{"uniform", uniform}, {"zipf", zipf}}}} {
		b.Run(fmt.Sprint("keys=", c.keys), func(b *testing.B) {
			s := open(b, filled(b, c.keys), c.keys, largeCache)
			s.warm(b)
			for _, by := range c.distributions {
				s.decideBy(b, by.name, by.pick(c.keys))
			}
			s.check(b)
		})
	}
}

// decideBy runs a benchmark for each durability and number of callers.
func (s *bench) decideBy(b *testing.B, name string, pick picker) {
	for _, d := range []badgerstore.Durability{badgerstore.Process, badgerstore.Power} {
		for _, callers := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/%v/callers=%d", name, d, callers), func(b *testing.B) {
				s.store.SetDurability(d)
				s.benchmark(b, load{callers: callers, pick: pick, want: service.Allowed, n: int64(b.N)})
			})
		}
	}
}

// benchmark drives a load and reports its figures.
func (s *bench) benchmark(b *testing.B, l load) {
	b.ReportAllocs()
	b.ResetTimer()
	f := s.must(b, l)
	b.StopTimer()
	f.report(b)
}

// must drives a load, and fails the benchmark when the load fails.
func (s *bench) must(b *testing.B, l load) figures {
	b.Helper()
	f, err := s.drive(l)
	if err != nil {
		b.Fatal(err)
	}
	return f
}

// BenchmarkDenied decides requests of one key with an exhausted quota.
func BenchmarkDenied(b *testing.B) {
	s := open(b, filled(b, 10_000), 10_000, largeCache)
	if d, err := s.service.Validate(context.Background(), account, request(secret(spent))); err != nil || !d.Allowed() {
		b.Fatalf("the first request: got %v, %v, want allowed", d.Outcome, err)
	}
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprint("callers=", callers), func(b *testing.B) {
			s.benchmark(b, load{callers: callers, pick: one(spent), want: service.Denied, n: int64(b.N)})
		})
	}
}

// BenchmarkLimits compares a plan that has one limit with a plan that has three limits on two meters, and with keys that have a limit and a scope of their
// own, in an account with 20 prices.
func BenchmarkLimits(b *testing.B) {
	const keys = 10_000
	s := open(b, filled(b, keys), keys, largeCache)
	for _, plan := range []struct {
		name   string
		limits []core.Limit
		costs  []core.MeterCost
		inside bool
	}{
		{"limits=1", nil, nil, false},
		{"limits=3", []core.Limit{{Meter: core.MeterRequests, Max: core.MaxLimit, Period: core.Day}, {Meter: "tokens", Max: core.MaxLimit, Period: core.Month}},
			[]core.MeterCost{{Meter: "tokens", Cost: 100}}, false},
		{"inside", nil, nil, true},
	} {
		large := largePlan(time.Now())
		large.Limits, s.costs = plan.limits, plan.costs
		if err := s.store.Update(context.Background(), account, func(tx core.Tx) error { return tx.PutPlan(large) }); err != nil {
			b.Fatal(err)
		}
		if s.priced = plan.inside; plan.inside {
			s.restrict(b)
		}
		s.service = newService(s.store, largeCache) // the other one has the plan in memory
		s.warm(b)
		s.allowed = 0
		for _, callers := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/callers=%d", plan.name, callers), func(b *testing.B) {
				s.benchmark(b, load{callers: callers, pick: uniform(keys), want: service.Allowed, n: int64(b.N)})
			})
		}
		s.check(b)
	}
}

// restrict gives each key a limit and a scope, and the account 20 prices, of which the last one is that of the requests.
func (s *bench) restrict(b *testing.B) {
	b.Helper()
	var prices core.Prices
	for i := range 20 {
		prices.Rules = append(prices.Rules, core.PriceRule{Endpoint: fmt.Sprintf("/v1/other%d/*", i), Costs: map[string]core.Price{core.MeterRequests: "2"}})
	}
	prices.Rules[19].Endpoint, prices.Rules[19].Costs = "GET /v1/items*", map[string]core.Price{core.MeterRequests: "1"}
	own := core.OwnLimits{Limits: []core.Limit{{Meter: core.MeterRequests, Max: core.MaxLimit, Period: core.Day}}}
	err := s.store.Update(context.Background(), account, func(tx core.Tx) error {
		for i := range s.keys {
			k, err := tx.Key(keyID(i))
			if err != nil {
				return err
			}
			k.Restrictions = &core.Restrictions{Scopes: []string{"read"}, OwnLimits: own}
			if err := tx.PutKey(k); err != nil {
				return err
			}
		}
		return tx.PutPrices(&prices)
	})
	if err != nil {
		b.Fatal(err)
	}
}

// BenchmarkSustained loads the store for the duration of -sustained, so that checkpoints run
// under load. Run it with -benchtime 1x.
func BenchmarkSustained(b *testing.B) {
	s := open(b, filled(b, million), million, largeCache)
	s.warm(b)
	b.Run("uniform", func(b *testing.B) {
		for range b.N {
			before, w := s.store.Stats(), watch(s.store.Stats, *sustained)
			f := s.must(b, load{callers: 64, pick: uniform(million), want: service.Allowed, lasting: *sustained})
			w.stop()
			w.report(b, before, s.store.Stats())
			f.report(b)
			b.ReportMetric(float64(f.mallocs)/float64(f.n), "allocs/op")
		}
	})
	s.check(b)
}

// BenchmarkCold decides the first request of keys that are not in memory. The files of the
// store are in the page cache.
func BenchmarkCold(b *testing.B) {
	s := open(b, filled(b, million), million, service.DefaultKeyCache)
	next := 0
	b.ReportAllocs()
	b.ResetTimer()
	f := s.must(b, load{callers: 1, n: int64(min(b.N, million)), want: service.Allowed, pick: func(int) func() int {
		return func() int { next = (next + 611_953) % million; return next } // a prime step visits each key once
	}})
	b.StopTimer()
	f.report(b)
}

// BenchmarkMemory reports the memory of a process with a million keys in the store and the
// default key cache, after half a million decisions. Run it with -benchtime 1x.
func BenchmarkMemory(b *testing.B) {
	s := open(b, filled(b, million), million, service.DefaultKeyCache)
	f := s.must(b, load{callers: 64, pick: uniform(million), want: service.Allowed, n: million / 2})
	f.report(b)
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	mebibytes := func(word string) float64 { return float64(numberAfter(string(status), word)) / 1024 }
	b.ReportMetric(mebibytes("VmRSS:"), "rss-MiB")
	b.ReportMetric(mebibytes("RssAnon:"), "anonymous-MiB")
	b.ReportMetric(mebibytes("VmHWM:"), "peak-MiB")
}

// BenchmarkMemoryPerKey reports the heap for each cached key, with its counter and a tenth of
// its user. It reads 200,000 keys. Run it with -benchtime 1x.
func BenchmarkMemoryPerKey(b *testing.B) {
	s := open(b, filled(b, million), million, largeCache)
	s.keys = million / 5
	before := heap()
	s.warm(b)
	b.ReportMetric(float64(heap()-before)/float64(s.keys), "B/key")
	runtime.KeepAlive(s)
}

// heap returns the bytes of reachable objects.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// dieIn is the environment variable with the directory of a store. A process that has the
// variable makes decisions there and kills itself.
const dieIn = "BENCH_DIE_IN"

// BenchmarkOpen opens a store with a million keys and ten million entries in its history, and
// makes the first decision. A process with the store ended by SIGKILL after 100,000 more
// decisions. The files are in the page cache. With rebuilds the database is missing, as if it was
// damaged, and is rebuilt from the newest image and the event log. Run it with -benchtime 1x.
func BenchmarkOpen(b *testing.B) {
	for _, rebuilds := range []bool{false, true} {
		b.Run(fmt.Sprint("rebuilds=", rebuilds), func(b *testing.B) { benchmarkOpen(b, rebuilds) })
	}
}

func benchmarkOpen(b *testing.B, rebuilds bool) {
	dir := fixture(b, "1000000-with-history", func(dir string) error {
		return errors.Join(copyDir(dir, filled(b, million)), decideIn(dir, historyEntries))
	})
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), dieIn+"="+dir)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		b.Fatalf("the process ended with %v, want SIGKILL\n%s", err, &out)
	}
	if rebuilds {
		if err := os.RemoveAll(filepath.Join(dir, "database")); err != nil {
			b.Fatal(err)
		}
	}
	start := time.Now()
	s := open(b, dir, 1, service.DefaultKeyCache)
	opened := time.Since(start)
	if err := s.decide(secret(0), service.Allowed, false, nil); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(time.Since(start).Microseconds())/1e3, "first-answer-ms")
	b.ReportMetric(float64(opened.Microseconds())/1e3, "open-ms")
	s.keys = million
	if got := s.counted(b); got != historyEntries+afterCheckpoint+1 {
		b.Errorf("after opening: got %d counted, want %d", got, historyEntries+afterCheckpoint+1)
	}
}

// decideIn opens the store in a directory and makes n decisions, the same number on each key.
func decideIn(dir string, n int64) (err error) {
	s, err := badgerstore.Open(dir, badgerstore.Options{CounterCache: 2 * largeCache})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	b := &bench{dir: dir, keys: million, store: s, service: newService(s, largeCache)}
	_, err = b.drive(load{callers: 64, pick: sweep(million, 64), want: service.Allowed, n: n})
	return err
}

// TestMain runs die in the process that BenchmarkOpen starts.
func TestMain(m *testing.M) {
	if dir := os.Getenv(dieIn); dir != "" {
		die(dir)
	}
	os.Exit(m.Run())
}

// die makes decisions and ends by SIGKILL.
func die(dir string) {
	s, err := badgerstore.Open(dir, badgerstore.Options{CounterCache: 2 * largeCache})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	b := &bench{dir: dir, keys: million, store: s, service: newService(s, largeCache)}
	if _, err := b.drive(load{callers: 64, pick: uniform(million), want: service.Allowed, n: afterCheckpoint}); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

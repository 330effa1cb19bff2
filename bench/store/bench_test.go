package store

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore"
)

// lasting is how long BenchmarkSustained loads the store.
var lasting = flag.Duration("sustained", 10*time.Second, "how long BenchmarkSustained loads the store")

// million is the number of keys of the large store, and roomForAll a key cache that has
// room for all of them.
const (
	million    = 1_000_000
	roomForAll = 1_200_000
	tenMillion = 10_000_000
	unfolded   = 100_000
)

// filled returns a copy of a store with so many keys.
func filled(tb testing.TB, keys int) string {
	tb.Helper()
	return fixture(tb, strconv.Itoa(keys), withKeys(keys))
}

// BenchmarkDecide decides requests that are allowed. The key cache has room for all
// keys, and all are in it.
func BenchmarkDecide(b *testing.B) {
	for _, keys := range []int{10_000, million} {
		b.Run(fmt.Sprint("keys=", keys), func(b *testing.B) {
			s := open(b, filled(b, keys), keys, roomForAll)
			s.warm(b)
			for _, law := range []struct {
				name string
				pick picker
			}{{"uniform", uniform(keys)}, {"zipf", zipf(keys)}} {
				for _, d := range []badgerstore.Durability{badgerstore.Process, badgerstore.Power} {
					for _, callers := range []int{1, 64, 256} {
						b.Run(fmt.Sprintf("%s/%v/callers=%d", law.name, d, callers), func(b *testing.B) {
							s.store.SetDurability(d)
							s.benchmark(b, load{callers: callers, pick: law.pick, want: core.Allowed, n: int64(b.N)})
						})
					}
				}
			}
			s.check(b)
		})
	}
}

// benchmark drives a load and reports it.
func (s *bench) benchmark(b *testing.B, l load) {
	b.ReportAllocs()
	b.ResetTimer()
	f := s.must(b, l)
	b.StopTimer()
	f.report(b)
}

// must drives a load that must succeed.
func (s *bench) must(b *testing.B, l load) figures {
	b.Helper()
	f, err := s.drive(l)
	if err != nil {
		b.Fatal(err)
	}
	return f
}

// BenchmarkDenied decides requests of one key whose quota is used up.
func BenchmarkDenied(b *testing.B) {
	s := open(b, filled(b, 10_000), 10_000, roomForAll)
	if d, err := s.service.Validate(context.Background(), account, request(secret(spent))); err != nil || !d.Allowed() {
		b.Fatalf("the first request: got %v, %v, want allowed", d.Outcome, err)
	}
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprint("callers=", callers), func(b *testing.B) {
			s.benchmark(b, load{callers: callers, pick: one(spent), want: core.Denied, n: int64(b.N)})
		})
	}
}

// BenchmarkSustained decides for as long as -sustained says, with everything that is
// done in the background meanwhile. It is to be run once: -benchtime 1x.
func BenchmarkSustained(b *testing.B) {
	s := open(b, filled(b, million), million, roomForAll)
	s.warm(b)
	for _, law := range []struct {
		name string
		pick func(int) picker
	}{{"uniform", uniform}, {"zipf", zipf}} {
		b.Run(law.name, func(b *testing.B) {
			for range b.N {
				before, w := s.store.Stats(), watch(s.store.Stats, *lasting)
				f := s.must(b, load{callers: 64, pick: law.pick(million), want: core.Allowed, lasting: *lasting})
				w.stop()
				w.report(b, before, s.store.Stats())
				f.report(b)
				b.ReportMetric(float64(f.mallocs)/float64(f.n), "allocs/decision")
			}
		})
	}
	s.check(b)
}

// BenchmarkCold decides the first request of keys that are not in memory, one after the
// other. The files of the store are in the memory of the system.
func BenchmarkCold(b *testing.B) {
	s := open(b, filled(b, million), million, core.DefaultKeyCache)
	next := 0
	b.ReportAllocs()
	b.ResetTimer()
	f := s.must(b, load{callers: 1, n: int64(min(b.N, million)), want: core.Allowed, pick: func(int) func() int {
		return func() int { next = (next + 611_953) % million; return next } // a prime: no key twice
	}})
	b.StopTimer()
	f.report(b)
}

// BenchmarkMemory says how much memory a process has with a million keys in the store and
// the default key cache, after half a million decisions, a few for each key that it has
// room for. It is to be run once.
func BenchmarkMemory(b *testing.B) {
	s := open(b, filled(b, million), million, core.DefaultKeyCache)
	f := s.must(b, load{callers: 64, pick: uniform(million), want: core.Allowed, n: million / 2})
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

// BenchmarkMemoryOfKey says how much of the heap a key takes that is in memory with its
// counter, and a tenth of its user: of 200,000 that are read. It is to be run once.
func BenchmarkMemoryOfKey(b *testing.B) {
	s := open(b, filled(b, million), million, roomForAll)
	s.keys = million / 5
	before := heap()
	s.warm(b)
	b.ReportMetric(float64(heap()-before)/float64(s.keys), "B/key")
	runtime.KeepAlive(s)
}

// heap returns the bytes of the heap that are in use.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// dieIn is the environment variable that names the directory in which a process of the
// test makes decisions until it is killed.
const dieIn = "BENCH_DIE_IN"

// BenchmarkOpen opens a store of a million keys with ten million entries in its history,
// which was killed after 100,000 more decisions, and makes the first decision. The files
// are in the memory of the system. It is to be run once.
func BenchmarkOpen(b *testing.B) {
	dir := fixture(b, "1000000-with-history", func(dir string) error {
		return errors.Join(copyDir(dir, filled(b, million)), decideIn(dir, tenMillion))
	})
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), dieIn+"="+dir)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		b.Fatalf("the process that is to be killed: %v\n%s", err, &out)
	}
	start := time.Now()
	s := open(b, dir, 1, core.DefaultKeyCache)
	opened := time.Since(start)
	if err := s.decide(secret(0), core.Allowed, false, nil); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(time.Since(start).Microseconds())/1e3, "first-answer-ms")
	b.ReportMetric(float64(opened.Microseconds())/1e3, "open-ms")
	s.keys = million
	if got := s.counted(b); got != tenMillion+unfolded+1 {
		b.Errorf("after opening: got %d counted, want %d", got, tenMillion+unfolded+1)
	}
}

// decideIn opens the store in a directory and makes so many decisions, on all keys alike.
func decideIn(dir string, n int64) (err error) {
	s, err := badgerstore.Open(dir, badgerstore.Options{CounterCache: 2 * roomForAll})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	b := &bench{dir: dir, keys: million, store: s, service: newService(s, roomForAll)}
	_, err = b.drive(load{callers: 64, pick: sweep(million, 64), want: core.Allowed, n: n})
	return err
}

// TestMain is also the process that is killed.
func TestMain(m *testing.M) {
	if dir := os.Getenv(dieIn); dir != "" {
		die(dir)
	}
	os.Exit(m.Run())
}

// die makes decisions and ends as by kill -9.
func die(dir string) {
	s, err := badgerstore.Open(dir, badgerstore.Options{CounterCache: 2 * roomForAll})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	b := &bench{dir: dir, keys: million, store: s, service: newService(s, roomForAll)}
	if _, err := b.drive(load{callers: 64, pick: uniform(million), want: core.Allowed, n: unfolded}); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

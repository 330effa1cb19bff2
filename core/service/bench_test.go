//go:build unix

package service_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// benchStore holds keys, each with a user of its own, and allows every request. A benchmark over it
// measures core alone.
type benchStore struct {
	core.Store
	keys   map[secrets.Digest]int
	denies bool
	prices core.Prices
}

const benchAccount = "acct_0123456789abcdefghij"

// benchPlans is the number of plans. Keys are assigned to them in turn.
const benchPlans = 10

func benchPlan(n int) string { return fmt.Sprintf("plan_%020d", n%benchPlans) }

func newBenchStore(n int) (*benchStore, []string) {
	s := &benchStore{keys: make(map[secrets.Digest]int, n)}
	values := make([]string, n)
	for i := range values {
		values[i] = fmt.Sprintf("lk_user_%032d", i)
		s.keys[secrets.DigestOf(values[i])] = i
	}
	return s, values
}

func (s *benchStore) Account(_ context.Context, id string) (*core.Account, error) {
	return &core.Account{ID: id, Name: "bench"}, nil
}

func (s *benchStore) KeyByDigest(_ context.Context, d secrets.Digest) (*core.Key, error) {
	n, ok := s.keys[d]
	if !ok {
		return nil, core.ErrKeyNotFound
	}
	at := time.Unix(int64(n), 0).UTC()
	return &core.Key{AccountID: strings.Clone(benchAccount), ID: fmt.Sprintf("key_%020d", n), Seq: int64(n + 1),
		Name: "key of an app", UserID: int64(n + 1), PlanID: benchPlan(n), Status: core.KeyActive, Digest: d,
		Hint: "lk_user_…wxyz", CreatedAt: at, UpdatedAt: at}, nil
}

func (s *benchStore) User(_ context.Context, account string, id int64) (*core.User, error) {
	at := time.Unix(id, 0).UTC()
	return &core.User{AccountID: strings.Clone(account), ID: id, Name: fmt.Sprintf("user %d", id),
		Email: new(fmt.Sprintf("user%d@example.com", id)), CreatedAt: at, UpdatedAt: at}, nil
}

func (s *benchStore) Plan(_ context.Context, account, id string) (*core.Plan, error) {
	return &core.Plan{AccountID: account, ID: id, Seq: 1, Name: "basic", Limit: 1000, Period: core.Month}, nil
}

func (s *benchStore) Prices(context.Context, string) (*core.Prices, error) { return &s.prices, nil }

var benchWindow = core.Month.Window(time.Unix(1_700_000_000, 0))

func (s *benchStore) Consume(context.Context, *core.Consumption) (core.ConsumeResult, error) {
	return core.ConsumeResult{Usage: core.Usage{Window: benchWindow, Used: 1}, Allowed: !s.denies}, nil
}

// cpuTime returns the CPU time of this process.
func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// heapInUse returns the heap in use, in bytes.
func heapInUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkValidate measures decisions on cached keys, in random order. Read cpu-ns/op: wall-clock
// time includes other programs.
func BenchmarkValidate(b *testing.B) {
	for _, keys := range []int{10_000, 1_000_000} {
		for _, callers := range []int{1, 64} {
			b.Run(fmt.Sprintf("keys=%d/callers=%d", keys, callers), func(b *testing.B) {
				store, values := newBenchStore(keys)
				benchValidate(b, store, values, callers, service.Allowed)
			})
		}
	}
}

// BenchmarkValidateDenied measures refusals of one key.
func BenchmarkValidateDenied(b *testing.B) {
	store, values := newBenchStore(1)
	store.denies = true
	benchValidate(b, store, values, 1, service.Denied)
}

// BenchmarkValidatePriced measures decisions that cost what the last of 20 prices says.
func BenchmarkValidatePriced(b *testing.B) {
	store, values := newBenchStore(10_000)
	for i := range 20 {
		endpoint := fmt.Sprintf("GET,POST /v1/things%d/*", i)
		if i == 19 {
			endpoint = "GET /v1/items/*"
		}
		store.prices.Rules = append(store.prices.Rules, core.PriceRule{Endpoint: endpoint, Costs: map[string]core.Price{"requests": "10", "tokens": "5"}})
	}
	benchValidate(b, store, values, 1, service.Allowed)
}

func benchValidate(b *testing.B, store *benchStore, values []string, callers int, want service.Outcome) {
	s := service.New(store, service.Config{})
	s.Tune(service.Tunables{KeyCache: len(values)})
	one := func(secret string) {
		d, err := s.Validate(context.Background(), benchAccount,
			service.Request{Secret: secret, Endpoint: "/v1/items/42", Method: "GET", IP: "203.0.113.9", CostByPrice: true})
		if err != nil || d.Outcome != want {
			b.Errorf("Validate = %v, %v, want %v", d.Outcome, err, want)
		}
	}
	empty := heapInUse()
	for _, secret := range values {
		one(secret)
	}
	held := float64(heapInUse() - empty)
	// Walking along a shuffled list costs the callers nothing, and is random to the cache.
	shuffled := make([]string, len(values))
	for i, at := range rand.Perm(len(values)) {
		shuffled[i] = strings.Clone(values[at])
	}
	runtime.GC()
	var first atomic.Int64
	b.ReportAllocs()
	b.SetParallelism((callers + runtime.GOMAXPROCS(0) - 1) / runtime.GOMAXPROCS(0))
	if callers == 1 {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
		b.SetParallelism(1)
	}
	b.ResetTimer()
	before := cpuTime()
	b.RunParallel(func(pb *testing.PB) {
		for i := int(first.Add(7919 * 31)); pb.Next(); i++ {
			one(shuffled[i%len(shuffled)])
		}
	})
	b.ReportMetric(float64(cpuTime()-before)/float64(b.N), "cpu-ns/op")
	b.ReportMetric(held/float64(len(values)), "held-B/key")
}

package redisstore_test

import (
	"sync/atomic"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
	"github.com/limitkeeper/limitkeeper/storage/storetest"
)

// BenchmarkConsume measures 64 callers with 1,000 keys. It reports the server's CPU time for each request.
func BenchmarkConsume(b *testing.B) {
	server := redistest.Start(b)
	s := open(b, redisstore.Options{Addresses: []string{server.Addr()}})
	defer s.Close()
	_, keys := createUsedKeys(b, s, 1000)
	var next atomic.Int64
	b.SetParallelism(32)
	b.ReportAllocs()
	before := server.CPU()
	b.ResetTimer()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			i := int(next.Add(1))
			if _, err := s.Consume(b.Context(), counted(keys[i%len(keys)], i)); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64((server.CPU()-before).Microseconds())/float64(b.N), "server-µs/op")
}

// createUsedKeys returns n keys of one account on one plan, each with one counted request.
func createUsedKeys(b *testing.B, s *redisstore.Store, n int) (*core.Plan, []*core.Key) {
	b.Helper()
	if err := s.CreateAccount(b.Context(), &core.Account{ID: "acct_bench", Name: "bench"},
		&core.OwnerKey{ID: "okey_1", AccountID: "acct_bench"}); err != nil {
		b.Fatal(err)
	}
	pl, keys := storetest.Fill(b, s, "acct_bench", n)
	for i, k := range keys {
		if _, err := s.Consume(b.Context(), counted(k, i)); err != nil {
			b.Fatal(err)
		}
	}
	return pl, keys
}

// BenchmarkDays sums one day of a plan with 10,000 keys, each of its own user.
func BenchmarkDays(b *testing.B) {
	server := redistest.Start(b)
	s := open(b, redisstore.Options{Addresses: []string{server.Addr()}})
	defer s.Close()
	pl, keys := createUsedKeys(b, s, 10_000)
	day := core.DateOf(counted(keys[0], 0).Entry.At)
	for b.Loop() {
		days, err := s.Days(b.Context(), core.DaysFilter{Account: "acct_bench", PlanID: pl.ID}, day, day)
		if err != nil || days[0].Allowed == 0 {
			b.Fatal(days, err)
		}
	}
}

// BenchmarkPlanUsed sums the usage of a plan with 10,000 keys, each of its own user.
func BenchmarkPlanUsed(b *testing.B) {
	server := redistest.Start(b)
	s := open(b, redisstore.Options{Addresses: []string{server.Addr()}})
	defer s.Close()
	pl, keys := createUsedKeys(b, s, 10_000)
	at := counted(keys[0], 0).Entry.At
	for b.Loop() {
		d, err := s.PlanUsed(b.Context(), "acct_bench", pl.ID, core.Year, at)
		if err != nil || d < 10_000 {
			b.Fatal(d, err)
		}
	}
}

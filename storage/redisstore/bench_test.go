package redisstore_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
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

// BenchmarkKeysOfPlan reads the first page of the keys of a plan that 100,000 users have, each with a key that draws on it.
func BenchmarkKeysOfPlan(b *testing.B) {
	const users = 100_000
	server := redistest.Start(b)
	s := open(b, redisstore.Options{Addresses: []string{server.Addr()}})
	defer s.Close()
	if err := s.CreateAccount(b.Context(), &core.Account{ID: "acct_bench", Name: "bench"}, &core.OwnerKey{ID: "okey_1", AccountID: "acct_bench"}); err != nil {
		b.Fatal(err)
	}
	for first := 0; first < users; first += 1000 {
		err := s.Update(b.Context(), "acct_bench", func(tx core.Tx) error {
			for i := first; i < first+1000; i++ {
				u := &core.User{AccountID: "acct_bench", Name: "customer", PlanID: "plan_1"}
				if err := tx.PutUser(u); err != nil {
					return err
				}
				k := &core.Key{AccountID: "acct_bench", ID: fmt.Sprintf("key_%020d", i), Name: "key", UserID: u.ID, Status: core.KeyActive, Digest: secrets.DigestOf(fmt.Sprint(i))}
				if err := tx.PutKey(k); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	svc := service.New(s, service.Config{})
	for b.Loop() {
		list, total, err := svc.KeysUnderPlan(b.Context(), "acct_bench", "plan_1", core.KeyFilter{}, core.Page{Number: 1, Size: 10})
		if err != nil || len(list) != 10 || total != users {
			b.Fatalf("got %d of %d keys, %v, want 10 of %d", len(list), total, err, users)
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

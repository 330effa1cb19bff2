package redisstore_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

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

// customers is the number of users of fillCustomers.
const customers = 100_000

// fillCustomers returns a service over a new server with an account of 100,000 users on a plan. Each has a key that draws on it.
func fillCustomers(b *testing.B) (*redisstore.Store, *service.Service) {
	b.Helper()
	s := open(b, redisstore.Options{Addresses: []string{redistest.Start(b).Addr()}})
	b.Cleanup(func() { s.Close() })
	if err := s.CreateAccount(b.Context(), &core.Account{ID: "acct_bench", Name: "bench"}, &core.OwnerKey{ID: "okey_1", AccountID: "acct_bench"}); err != nil {
		b.Fatal(err)
	}
	put := func(tx core.Tx, i int) error {
		u := &core.User{AccountID: "acct_bench", Name: fmt.Sprint("customer ", i), PlanID: "plan_1", Email: new(fmt.Sprintf("user%d@customer.example", i)), ExternalID: fmt.Sprint("cus_", i)}
		if err := tx.PutUser(u); err != nil {
			return err
		}
		value := secrets.NewUserSecret(secrets.DefaultKeyPrefix)
		return tx.PutKey(&core.Key{AccountID: "acct_bench", ID: fmt.Sprintf("key_%020d", i), Name: "key", UserID: u.ID, Status: core.KeyActive,
			Digest: secrets.DigestOf(value), Hint: secrets.HintOf(value)})
	}
	for first := 0; first < customers; first += 1000 {
		err := s.Update(b.Context(), "acct_bench", func(tx core.Tx) (err error) {
			for i := first; i < first+1000 && err == nil; i++ {
				err = put(tx, i)
			}
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	return s, service.New(s, service.Config{})
}

// BenchmarkKeysOfPlan reads the first page of the keys of a plan that 100,000 users have, each with a key that draws on it.
func BenchmarkKeysOfPlan(b *testing.B) {
	_, svc := fillCustomers(b)
	for b.Loop() {
		list, total, err := svc.KeysUnderPlan(b.Context(), "acct_bench", "plan_1", core.KeyFilter{}, core.Page{Number: 1, Size: 10})
		if err != nil || len(list) != 10 || total != customers {
			b.Fatalf("got %d of %d keys, %v, want 10 of %d", len(list), total, err, customers)
		}
	}
}

// BenchmarkSearch searches among 100,000 users, each with an email, an external id and a key.
func BenchmarkSearch(b *testing.B) {
	s, svc := fillCustomers(b)
	k, err := s.Key(b.Context(), "acct_bench", fmt.Sprintf("key_%020d", 70_000))
	if err != nil {
		b.Fatal(err)
	}
	for name, text := range map[string]string{
		"hint": k.Hint, "key id": k.ID, "user id": fmt.Sprint(k.UserID), "email": "USER70000@customer.example", "external id": "cus_70000", "name": "customer 4", "nothing": "nobody@customer.example",
	} {
		b.Run(name, func(b *testing.B) {
			var slowest time.Duration
			for b.Loop() {
				start := time.Now()
				r, err := svc.Search(b.Context(), "acct_bench", text, 10)
				if err != nil || (len(r.Matches) == 0) != (name == "nothing") {
					b.Fatalf("got %d matches, %v", len(r.Matches), err)
				}
				slowest = max(slowest, time.Since(start))
			}
			b.ReportMetric(float64(slowest.Microseconds())/1000, "slowest-ms")
		})
	}
}

// BenchmarkReport reports a month of 100,000 users, each used on every day. Run it with -benchtime 1x.
func BenchmarkReport(b *testing.B) {
	s, svc := fillCustomers(b)
	last := core.DateOf(time.Now()) - 1
	var days []core.CounterDay
	for d := last - 29; d <= last; d++ {
		days = append(days, core.CounterDay{Date: d, Traffic: core.Traffic{Allowed: 40, Denied: 1}})
	}
	var fill errgroup.Group
	fill.SetLimit(64)
	for i := range customers {
		fill.Go(func() error {
			return s.SetDays(b.Context(), core.CounterID{Account: "acct_bench", UserID: int64(i + 1)}, days)
		})
	}
	if err := fill.Wait(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		rows := 0
		err := svc.StreamReport(b.Context(), "acct_bench", service.ReportQuery{First: last - 29, Last: last, User: true, Meter: true}, func(list []service.ReportRow) error {
			rows += len(list)
			return nil
		})
		if err != nil || rows != customers {
			b.Fatalf("got %d rows, %v, want %d", rows, err, customers)
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

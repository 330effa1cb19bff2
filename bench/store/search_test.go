package store

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore"
)

const customers = 100_000 // users of the store of BenchmarkSearch, each with a key

// BenchmarkSearch searches among 100,000 users, each with an email, an external id and a key.
func BenchmarkSearch(b *testing.B) {
	s := open(b, fixture(b, "customers", fillCustomers), customers, largeCache)
	r := request(secret(70_000))
	r.IP = "203.0.113.7"
	if d, err := s.service.Validate(b.Context(), account, r); err != nil || !d.Allowed() {
		b.Fatalf("got %v, %v, want allowed", d.Outcome, err)
	}
	for name, c := range map[string]struct {
		text string
		want int
	}{
		"value": {"Bearer " + secret(70_000), 1}, "hint": {secrets.HintOf(secret(70_000)), 9}, "key id": {keyID(70_000), 1}, "user id": {"70001", 1},
		"email": {"USER70001@customer.example", 1}, "external id": {"cus_70001", 1}, "address": {"203.0.113.7", 1},
		"name": {"customer 4", 10}, "nothing": {"nobody@customer.example", 0},
	} {
		b.Run(name, func(b *testing.B) {
			var slowest time.Duration
			for b.Loop() {
				start := time.Now()
				r, err := s.service.Search(b.Context(), account, c.text, 10)
				if err != nil || len(r.Matches) != c.want {
					b.Fatalf("got %d matches, %v, want %d", len(r.Matches), err, c.want)
				}
				slowest = max(slowest, time.Since(start))
			}
			b.ReportMetric(float64(slowest.Microseconds())/1000, "slowest-ms")
		})
	}
}

// fillCustomers fills a store with the users of BenchmarkSearch.
func fillCustomers(dir string) (err error) {
	if err := withKeys(0)(dir); err != nil {
		return err
	}
	s, err := badgerstore.Open(dir, quiet)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	now := time.Now().UTC().Truncate(time.Millisecond)
	for first := 1; first < customers; first += batch {
		err := s.Update(context.Background(), account, func(tx core.Tx) error {
			for i := first; i < min(first+batch, customers); i++ {
				u := &core.User{AccountID: account, ID: int64(i + 1), Name: fmt.Sprint("customer ", i+1), Email: new(fmt.Sprintf("user%d@customer.example", i+1)),
					ExternalID: fmt.Sprint("cus_", i+1), CreatedAt: now, UpdatedAt: now}
				if err := errors.Join(tx.PutUser(u), tx.PutKey(newKey(i, u.ID, largePlan(now).ID, now))); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

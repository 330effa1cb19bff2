package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
		"value": {"Bearer " + secret(70_000), 1}, "hint": {randomHint(70_000), 1}, "key id": {keyID(70_000), 1}, "user id": {"70001", 1},
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

// BenchmarkKeysOfPlan reads pages of the keys of a plan that 100 or 100,000 users have, each with a key that draws on it.
func BenchmarkKeysOfPlan(b *testing.B) {
	for _, users := range []int{100, customers} {
		dir := fixture(b, fmt.Sprint("plan-of-", users), func(dir string) error {
			return errors.Join(withKeys(0)(dir), eachBatch(dir, users, func(tx core.Tx, i int, now time.Time) error {
				u := &core.User{AccountID: account, Name: fmt.Sprint("customer ", i), PlanID: largePlan(now).ID, CreatedAt: now, UpdatedAt: now}
				return errors.Join(tx.PutUser(u), tx.PutKey(newKey(i, u.ID, "", now)))
			}))
		})
		s := open(b, dir, users, largeCache)
		for name, c := range map[string]struct {
			p core.Page
			f core.KeyFilter
		}{
			"first": {p: core.Page{Number: 1, Size: 10}}, "last": {p: core.Page{Number: users / 10, Size: 10}},
			"active": {p: core.Page{Number: 1, Size: 10}, f: core.KeyFilter{Status: core.KeyActive}},
		} {
			b.Run(fmt.Sprint(name, "/users=", users), func(b *testing.B) {
				for b.Loop() {
					list, total, err := s.service.KeysUnderPlan(b.Context(), account, "plan_large", c.f, c.p)
					if err != nil || len(list) != 10 || total != users {
						b.Fatalf("got %d of %d keys, %v, want 10 of %d", len(list), total, err, users)
					}
				}
			})
		}
	}
}

// fillCustomers fills a store with the users of BenchmarkSearch.
func fillCustomers(dir string) error {
	return errors.Join(withKeys(0)(dir), eachBatch(dir, customers-1, func(tx core.Tx, n int, now time.Time) error {
		i := n + 1
		u := &core.User{AccountID: account, ID: int64(i + 1), Name: fmt.Sprint("customer ", i+1), Email: new(fmt.Sprintf("user%d@customer.example", i+1)),
			ExternalID: fmt.Sprint("cus_", i+1), CreatedAt: now, UpdatedAt: now}
		k := newKey(i, u.ID, largePlan(now).ID, now)
		k.Hint = randomHint(i)
		return errors.Join(tx.PutUser(u), tx.PutKey(k))
	}))
}

// randomHint returns the hint of a key as it is for a random value. The values of the fixtures end with digits, so their hints are
// alike.
func randomHint(i int) string {
	const characters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	r := rand.New(rand.NewPCG(17, uint64(i)))
	value := make([]byte, 29)
	for j := range value {
		value[j] = characters[r.IntN(len(characters))]
	}
	return secrets.HintOf(secrets.DefaultKeyPrefix + string(value))
}

// eachBatch calls put with each number below n, in transactions of the store in a directory.
func eachBatch(dir string, n int, put func(tx core.Tx, i int, now time.Time) error) (err error) {
	s, err := badgerstore.Open(dir, quiet)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	now := time.Now().UTC().Truncate(time.Millisecond)
	for first := 0; first < n; first += batch {
		err := s.Update(context.Background(), account, func(tx core.Tx) error {
			for i := first; i < min(first+batch, n); i++ {
				if err := put(tx, i, now); err != nil {
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

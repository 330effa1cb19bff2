package badgerstore

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// BenchmarkCreate creates a user with a key in each transaction. The concurrent callers use one account each, or share
// one account. It reports the processor time of a transaction.
func BenchmarkCreate(b *testing.B) {
	for _, d := range []Durability{Process, Power} {
		for _, run := range []struct{ callers, accounts int }{{1, 1}, {64, 64}, {64, 1}} {
			b.Run(fmt.Sprintf("%v/callers=%d/accounts=%d", d, run.callers, run.accounts), func(b *testing.B) {
				s := openIn(b, b.TempDir(), Options{Durability: d})
				for i := range run.accounts {
					id := fmt.Sprint("acct", i)
					a, k := &core.Account{ID: id, Name: id}, &core.OwnerKey{ID: "okey" + id, AccountID: id, Digest: secrets.DigestOf(id)}
					if err := s.CreateAccount(context.Background(), a, k); err != nil {
						b.Fatal(err)
					}
				}
				var next atomic.Int64
				var group sync.WaitGroup
				b.ReportAllocs()
				b.ResetTimer()
				before := processorTime(b)
				for caller := range run.callers {
					group.Go(func() {
						account := fmt.Sprint("acct", caller%run.accounts)
						for n := next.Add(1); n <= int64(b.N); n = next.Add(1) {
							if err := s.Update(context.Background(), account, creates(account, n)); err != nil {
								b.Errorf("Update: %v", err)
								return
							}
						}
					})
				}
				group.Wait()
				b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

// creates returns a transaction that creates a user with a key, as the API does.
func creates(account string, n int64) func(core.Tx) error {
	return func(tx core.Tx) error {
		u := &core.User{AccountID: account, Name: "user", Email: new(fmt.Sprintf("%d@example.com", n)), PlanID: "plan", CreatedAt: noon, UpdatedAt: noon}
		if err := tx.PutUser(u); err != nil {
			return err
		}
		id := fmt.Sprintf("key_%020d", n)
		return tx.PutKey(&core.Key{AccountID: account, ID: id, UserID: u.ID, Status: core.KeyActive, Digest: secrets.DigestOf(id), Hint: "lk_user_…wxyz", CreatedAt: noon, UpdatedAt: noon})
	}
}

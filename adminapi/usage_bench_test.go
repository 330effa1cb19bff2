package adminapi_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/adminapi"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore"
)

// BenchmarkLargeUsage reads the usage of a user with 52,000 keys, and of their plan, in a store
// on disk. With eight readers at the same time it also measures how long another account, whose
// user has one key, waits for the same reading.
func BenchmarkLargeUsage(b *testing.B) {
	store, err := badgerstore.Open(b.TempDir(), badgerstore.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = store.Close() })
	svc := service.New(store, service.Config{})
	svc.Tune(service.Tunables{})
	large, plan := usageAccount(b, svc, store, "large", 52_000)
	small, _ := usageAccount(b, svc, store, "small", 1)
	c := config(svc)
	c.Secure = func(*http.Request) bool { return true }
	handler := adminapi.New(c)
	get := func(owner, path string) time.Duration {
		r := httptest.NewRequest("GET", "https://localhost"+prefix+path, nil)
		r.Header.Set("Authorization", "Bearer "+owner)
		w, began := httptest.NewRecorder(), time.Now()
		if handler.ServeHTTP(w, r); w.Code != http.StatusOK {
			b.Error(w.Code, w.Body)
		}
		return time.Since(began)
	}
	for _, path := range []string{"/users/1/usage", "/plans/" + plan + "/usage"} {
		name := path[1:6]
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				get(large, path)
			}
		})
		b.Run(name+" by eight", func(b *testing.B) {
			var all sync.WaitGroup
			done := make(chan struct{})
			for range 8 {
				all.Go(func() {
					for {
						select {
						case <-done:
							return
						default:
							get(large, path)
						}
					}
				})
			}
			var waits []time.Duration
			for b.Loop() {
				waits = append(waits, get(small, "/users/1/usage"))
			}
			close(done)
			all.Wait()
			slices.Sort(waits)
			b.ReportMetric(float64(waits[len(waits)/2].Microseconds()), "other-p50-µs")
			b.ReportMetric(float64(waits[len(waits)*99/100].Microseconds()), "other-p99-µs")
		})
	}
}

// usageAccount makes an account with a user that has n keys on one plan, each used once in a
// hundred, and returns its owner's key and the plan.
func usageAccount(b *testing.B, svc *service.Service, store core.Store, name string, n int) (owner, plan string) {
	b.Helper()
	ctx := b.Context()
	a, _, owner, err := svc.CreateAccount(ctx, name)
	if err != nil {
		b.Fatal(err)
	}
	pl, err := svc.CreatePlan(ctx, a.ID, core.PlanPatch{Name: new("Pro"), Limit: core.Some(int64(1000)), Period: new("month")})
	if err != nil {
		b.Fatal(err)
	}
	u, err := svc.CreateUser(ctx, a.ID, core.UserPatch{Name: new("ann")})
	if err != nil {
		b.Fatal(err)
	}
	keys := make([]*core.Key, n)
	for i := range keys {
		id := fmt.Sprintf("key_%s%d", name, i)
		keys[i] = &core.Key{AccountID: a.ID, ID: id, Name: id, UserID: u.ID, PlanID: pl.ID, Status: core.KeyActive,
			Digest: secrets.DigestOf(id), Hint: "lk_user_…wxyz", CreatedAt: svc.Now(), UpdatedAt: svc.Now()}
	}
	for some := range slices.Chunk(keys, 200) {
		err := store.Update(ctx, a.ID, func(tx core.Tx) error {
			for _, k := range some {
				k.Seq = 0
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
	for i := 0; i < n; i += 100 {
		k := keys[i]
		c := core.Consumption{Account: a.ID, KeyID: k.ID, KeySeq: k.Seq, UserID: u.ID, Terms: pl.Terms(), Cost: int64(i%900 + 1),
			Entry: core.Entry{At: svc.Now(), KeyID: k.ID, UserID: u.ID, Endpoint: "/", Method: "GET"}, Retention: core.DefaultRetention}
		if _, err := store.Consume(ctx, &c); err != nil {
			b.Fatal(err)
		}
	}
	return owner, pl.ID
}

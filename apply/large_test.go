package apply_test

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/limitkeeper/limitkeeper/apply"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// 10,000 users with two keys each, one by its digest, are one transaction on Badger, and 1,500 on Redis. Redis refuses
// more, in one line with the numbers, and stores nothing. A run without changes and the deletion of everything work, too.
func TestLargeFile(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	for name, tc := range map[string]struct {
		open    func(*testing.T) (core.Store, error)
		users   int
		tooMany bool // 10,000 users
	}{
		"badgerstore": {func(t *testing.T) (core.Store, error) { return badgerstore.Open(t.TempDir(), badgerstore.Options{}) }, 10_000, false},
		"redisstore": {func(t *testing.T) (core.Store, error) {
			return redisstore.Open(t.Context(), redisstore.Options{Addresses: []string{redistest.Start(t).Addr()}, Timeout: 10 * time.Second})
		}, 1500, true},
	} {
		t.Run(name, func(t *testing.T) {
			store, err := tc.open(t)
			if err != nil {
				t.Fatal(err)
			}
			defer store.Close()
			b := newBench(t, store)
			run := func(file string, o apply.Options, changes, made int) {
				t.Helper()
				begun := time.Now()
				r, err := b.try(file, o)
				if err != nil {
					t.Fatal(err)
				}
				if r.Changes() != changes || len(r.Accounts[0].Keys) != made || r.Error != "" {
					t.Errorf("got %d changes, %d values and the error %q, want %d and %d", r.Changes(), len(r.Accounts[0].Keys), r.Error, changes, made)
				}
				t.Logf("%d changes in %v", changes, time.Since(begun).Round(time.Millisecond))
			}
			if tc.tooMany {
				before := b.dump()
				_, err := b.try(largeFile(10_000), apply.Options{})
				if err == nil || !strings.HasPrefix(err.Error(), "30001 changes are too many for one transaction of this store: ") || strings.Contains(err.Error(), "\n") {
					t.Errorf("10,000 users: %v, want them refused", err)
				}
				if d := cmp.Diff(before, b.dump()); d != "" {
					t.Errorf("the account has changed:\n%s", d)
				}
			}
			run(largeFile(tc.users), apply.Options{}, 1+3*tc.users, tc.users)
			run(largeFile(tc.users), apply.Options{}, 0, 0)
			run("account: acme\nusers: []\nplans: []\n", apply.Options{Prune: true}, 1+3*tc.users, 0)
		})
	}
}

// A run deletes a bounded number of users and keys. Another user's deletion, and a file that keeps the keys, are not affected.
func TestManyDeletions(t *testing.T) {
	store := memstore.New()
	b := newBench(t, store)
	b.apply("account: acme\nplans: [{name: free, max_requests: 10, request_period: day}]\nusers: [{name: Small, plan: free}, {name: Large, plan: free}]\n", apply.Options{},
		`+ plan "free"`, `+ user "Small"`, `+ user "Large"`)
	const keys = 50_000
	err := store.Update(t.Context(), b.account, func(tx core.Tx) error {
		for i := range keys {
			if err := tx.PutKey(&core.Key{AccountID: b.account, ID: fmt.Sprint("key_", i), Name: fmt.Sprint(i), UserID: 2, Status: core.KeyActive, Digest: secrets.DigestOf(fmt.Sprint(i))}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, dryRun := range []bool{true, false} {
		b.refuse("account: acme\nusers: []\n", apply.Options{Prune: true, DryRun: dryRun},
			`This deletes 50002 users and keys, and one run at most 50000: keep some of them in the file, or delete some with the API first, such as the user "Large" with 50000 keys: DELETE /functions/v1/users/2`)
	}
	b.apply("account: acme\nusers: [{name: Large}]\n", apply.Options{Prune: true}, `- user "Small"`)
	if err := b.svc.DeleteUser(t.Context(), b.account, 2); err != nil {
		t.Fatal(err)
	}
	b.apply("account: acme\nusers: []\n", apply.Options{Prune: true})
}

// largeFile returns a file with users that have two keys each.
func largeFile(users int) string {
	var file strings.Builder
	file.WriteString("account: acme\nplans:\n- {name: free, max_requests: 100, request_period: day}\nusers:\n")
	for i := range users {
		fmt.Fprintf(&file, "- name: User %d\n  email: user%d@example.com\n  plan: free\n  keys:\n  - name: made\n  - {name: given, plan: free, key_sha256: %x}\n",
			i, i, sha256.Sum256(fmt.Appendf(nil, "key %d", i)))
	}
	return file.String()
}

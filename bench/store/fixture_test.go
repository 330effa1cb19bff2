package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore"
)

// The content of all fixtures.
const (
	account     = "acct_bench"
	keysPerUser = 10   // every key has a plan
	batch       = 1000 // keys in a transaction
	spent       = -1   // the number of an additional key with an exhausted quota
)

const (
	secretLength = len("lk_user_") + 32
	secretDigits = 8 // enough for the numbers of all keys
)

// secret returns the value of the key with a number.
func secret(i int) string { return fmt.Sprintf("lk_user_%032d", i+1) }

// keyID returns the ID of the key with a number.
func keyID(i int) string { return fmt.Sprintf("key_%020d", i+1) }

// secretWriter writes the values of keys into one buffer. The value is then in the CPU cache,
// as after a read from a connection. A table of a million values would add cache misses.
type secretWriter [secretLength]byte

// of returns secret(i). The string is valid until the next call.
func (w *secretWriter) of(i int) string {
	if w[0] == 0 {
		copy(w[:], secret(0))
	}
	n := i + 1
	for at := secretLength - 1; at >= secretLength-secretDigits; at-- {
		w[at] = byte('0' + n%10)
		n /= 10
	}
	return unsafe.String(&w[0], secretLength)
}

// fixtures returns the directory of the filled stores.
func fixtures() string {
	if dir := os.Getenv("BENCH_FIXTURES"); dir != "" {
		return dir
	}
	return filepath.Join(os.TempDir(), "limitkeeper-fixtures")
}

// fixture returns a copy of the filled store with a name. The first use fills it. An
// interrupted fill leaves no store behind.
func fixture(tb testing.TB, name string, fill func(dir string) error) string {
	tb.Helper()
	made := filepath.Join(fixtures(), fmt.Sprintf("%s-%s", name, layout(tb)))
	if _, err := os.Stat(made); err != nil {
		tb.Logf("filling %s", made)
		half := made + ".half"
		if err := errors.Join(os.RemoveAll(half), os.MkdirAll(half, 0o700), fill(half), os.Rename(half, made)); err != nil {
			tb.Fatalf("fill %s: %v", made, err)
		}
	}
	dir, err := os.MkdirTemp("", "limitkeeper-store-")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { os.RemoveAll(dir) })
	if err := copyDir(dir, made); err != nil {
		tb.Fatalf("copy %s: %v", made, err)
	}
	return dir
}

// copyDir copies a directory and syncs its files, so that a benchmark does not pay for the
// writes.
func copyDir(to, from string) error {
	return filepath.WalkDir(from, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, name), 0o700)
		}
		return copyFile(filepath.Join(to, name), path)
	})
}

// copyFile copies and syncs a file.
func copyFile(to, from string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Sync(), out.Close())
}

// withKeys fills a store with active keys under a plan with a limit far above the load, and
// the key spent.
func withKeys(keys int) func(dir string) error {
	return func(dir string) (err error) {
		s, err := badgerstore.Open(dir, quiet)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.Close()) }()
		ctx, now := context.Background(), time.Now().UTC().Truncate(time.Millisecond)
		owner := &core.OwnerKey{ID: "okey_bench", AccountID: account, Name: "bench", Digest: secrets.DigestOf("bench"), CreatedAt: now}
		if err := s.CreateAccount(ctx, &core.Account{ID: account, Name: "bench", CreatedAt: now}, owner); err != nil {
			return err
		}
		if err := s.Update(ctx, account, putPlans(now)); err != nil {
			return err
		}
		for first := 0; first < keys; first += batch {
			if err := s.Update(ctx, account, putKeys(first, min(first+batch, keys), now)); err != nil {
				return err
			}
		}
		return nil
	}
}

// largePlan returns the plan of all keys but spent.
func largePlan(now time.Time) *core.Plan {
	return &core.Plan{AccountID: account, ID: "plan_large", Name: "Large", Limit: core.MaxLimit, Period: core.Month, CreatedAt: now, UpdatedAt: now}
}

// putPlans creates the plans, and the key spent with its user.
func putPlans(now time.Time) func(core.Tx) error {
	return func(tx core.Tx) error {
		large := largePlan(now)
		small := &core.Plan{AccountID: account, ID: "plan_small", Name: "Small", Limit: 1, Period: core.Year, CreatedAt: now, UpdatedAt: now}
		u := &core.User{AccountID: account, ID: 1, Name: "user", CreatedAt: now, UpdatedAt: now}
		return errors.Join(tx.PutPlan(large), tx.PutPlan(small), tx.PutUser(u), tx.PutKey(newKey(spent, u.ID, small.ID, now)))
	}
}

// putKeys creates the keys with the numbers [first, end), and their users.
func putKeys(first, end int, now time.Time) func(core.Tx) error {
	return func(tx core.Tx) error {
		for i := first; i < end; i++ {
			user := int64(i/keysPerUser + 2)
			if i%keysPerUser == 0 {
				u := &core.User{AccountID: account, ID: user, Name: fmt.Sprint("user ", user), CreatedAt: now, UpdatedAt: now}
				if err := tx.PutUser(u); err != nil {
					return err
				}
			}
			if err := tx.PutKey(newKey(i, user, "plan_large", now)); err != nil {
				return err
			}
		}
		return nil
	}
}

func newKey(i int, user int64, plan string, now time.Time) *core.Key {
	return &core.Key{AccountID: account, ID: keyID(i), Name: fmt.Sprint("key ", i), UserID: user, PlanID: plan, Status: core.KeyActive,
		Digest: secrets.DigestOf(secret(i)), Hint: secrets.HintOf(secret(i)), CreatedAt: now, UpdatedAt: now}
}

// fillVersion changes with the content of the fixtures.
const fillVersion = "3"

// layout returns a hash of the layout of stores and of fillVersion.
func layout(tb testing.TB) string {
	tb.Helper()
	text, err := os.ReadFile("../../storage/badgerstore/layout.go")
	if err != nil {
		tb.Fatal(err)
	}
	digest := secrets.DigestOf(fillVersion + string(text))
	return fmt.Sprintf("%x", digest[:4])
}

// quiet are the options of a store without a log.
var quiet = badgerstore.Options{Logger: slog.New(slog.DiscardHandler)}

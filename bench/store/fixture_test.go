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
	"github.com/limitkeeper/limitkeeper/storage/badgerstore"
)

// The account of all fixtures, and how it is filled.
const (
	account    = "acct_bench"
	keysOfUser = 10   // every key has the plan of its own
	batch      = 1000 // keys in a transaction
	spent      = -1   // the number of one more key, whose quota is used up
)

// secretLength is the length of the values of keys.
const (
	secretLength = len("lk_user_") + 32
	secretDigits = 8 // that are not 0 in one of them
)

// secret returns the value of the key with a number.
func secret(i int) string { return fmt.Sprintf("lk_user_%032d", i+1) }

// keyID returns the ID of the key with a number.
func keyID(i int) string { return fmt.Sprintf("key_%020d", i+1) }

// secretWriter writes the values of keys, each in the place of the one before: like what
// a server has read from a connection a moment ago, it is near. A table of a million
// would be far away in the memory, and waiting for it would be measured too.
type secretWriter [secretLength]byte

// of returns what secret does, until it is called again.
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

// fixtures returns the directory that stores are kept in.
func fixtures() string {
	if dir := os.Getenv("BENCH_FIXTURES"); dir != "" {
		return dir
	}
	return filepath.Join(os.TempDir(), "limitkeeper-fixtures")
}

// fixture returns a copy of the store with a name, which is made by fill when it is not
// there yet. Half a fixture is never there.
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

// copyDir copies the files of a directory, and brings them to the disk: it is not the
// benchmark's to write.
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

// copyFile copies a file; holes stay holes where the system can tell.
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

// withKeys fills a store with so many keys, all active and under a plan that nobody
// exhausts, and one whose quota is used up.
func withKeys(keys int) func(dir string) error {
	return func(dir string) (err error) {
		s, err := badgerstore.Open(dir, quiet)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.Close()) }()
		ctx, now := context.Background(), time.Now().UTC().Truncate(time.Millisecond)
		owner := &core.OwnerKey{ID: "okey_bench", AccountID: account, Name: "bench", Digest: core.DigestOf("bench"), CreatedAt: now}
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

// putPlans makes the plans, and the user and key of the one that is exhausted by one
// request.
func putPlans(now time.Time) func(core.Tx) error {
	return func(tx core.Tx) error {
		large := &core.Plan{AccountID: account, ID: "plan_large", Name: "Large", Limit: core.MaxLimit, Period: core.Month, CreatedAt: now, UpdatedAt: now}
		small := &core.Plan{AccountID: account, ID: "plan_small", Name: "Small", Limit: 1, Period: core.Year, CreatedAt: now, UpdatedAt: now}
		u := &core.User{AccountID: account, ID: 1, Name: "user", CreatedAt: now, UpdatedAt: now}
		return errors.Join(tx.PutPlan(large), tx.PutPlan(small), tx.PutUser(u), tx.PutKey(newKey(spent, u.ID, small.ID, now)))
	}
}

// putKeys makes the keys with numbers from first up to and without end, and their users.
func putKeys(first, end int, now time.Time) func(core.Tx) error {
	return func(tx core.Tx) error {
		for i := first; i < end; i++ {
			user := int64(i/keysOfUser + 2)
			if i%keysOfUser == 0 {
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
		Digest: core.DigestOf(secret(i)), Hint: core.HintOf(secret(i)), CreatedAt: now, UpdatedAt: now}
}

// filling is changed with how fixtures are filled.
const filling = "2"

// layout returns a word that is another one when stores are laid out or filled
// differently.
func layout(tb testing.TB) string {
	tb.Helper()
	text, err := os.ReadFile("../../storage/badgerstore/layout.go")
	if err != nil {
		tb.Fatal(err)
	}
	digest := core.DigestOf(filling + string(text))
	return fmt.Sprintf("%x", digest[:4])
}

// quiet are the options that stores are opened with.
var quiet = badgerstore.Options{Logger: slog.New(slog.DiscardHandler)}

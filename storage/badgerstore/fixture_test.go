package badgerstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/diskspace"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// patience is the longest time that waitUntil waits. Filling a memtable with the race detector takes 20 s on a busy machine.
const patience = time.Minute

// quiet are options for a store that logs nothing. Its memtables are small, as in openAlone, because large memtables
// take most of the time under the race detector.
var quiet = Options{Logger: slog.New(slog.DiscardHandler), memtable: smallMemtable}

// acct is the account that most tests use.
const acct = "acct"

// setFull simulates a full disk, where one byte less than min_free is free. With is false, it ends the simulation.
func setFull(s *Store, is bool) {
	s.space.Space = diskspace.Space
	if is {
		s.space.Space = func(string) (uint64, uint64, error) { return uint64(s.space.MinFree() - 1), 1 << 40, nil }
	}
	s.space.Check()
}

// withAccount creates the account acct.
func withAccount(t testing.TB, s *Store) {
	t.Helper()
	a := &core.Account{ID: acct, Name: acct, CreatedAt: noon}
	k := &core.OwnerKey{ID: "okey", AccountID: acct, Digest: secrets.DigestOf(acct), CreatedAt: noon}
	if err := s.CreateAccount(context.Background(), a, k); err != nil {
		t.Fatalf("CreateAccount: %v", err)
	}
}

// update runs a transaction that must succeed.
func update(t testing.TB, s *Store, fn func(core.Tx) error) {
	t.Helper()
	if err := s.Update(context.Background(), acct, fn); err != nil {
		t.Fatalf("Update: %v", err)
	}
}

// known makes sure that the account has the users 1 to 8, and keys with these IDs, all of user 1. A test may count
// requests of any of these keys for any of these users, because Consume only checks that both exist.
func known(t testing.TB, s *Store, keys ...string) {
	t.Helper()
	if _, err := s.AccountByName(context.Background(), acct); err != nil {
		withAccount(t, s)
	}
	update(t, s, func(tx core.Tx) (err error) {
		for id := int64(1); id <= 8 && err == nil; id++ {
			err = tx.PutUser(&core.User{AccountID: acct, ID: id, Name: "user"})
		}
		return err
	})
	for some := range slices.Chunk(keys, 1000) {
		update(t, s, func(tx core.Tx) (err error) {
			for _, id := range some {
				err = firstOf(err, tx.PutKey(&core.Key{AccountID: acct, ID: id, UserID: 1, Status: core.KeyActive, Digest: secrets.DigestOf(id)}))
			}
			return err
		})
	}
}

// numbered returns n IDs that begin with prefix.
func numbered(prefix string, n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprint(prefix, i)
	}
	return ids
}

// withKeys returns a transaction that creates a user with an ID and n keys.
func withKeys(user int64, n int) func(core.Tx) error {
	return func(tx core.Tx) error {
		err := tx.PutUser(&core.User{AccountID: acct, ID: user, Name: "user", PlanID: "plan", Email: new(fmt.Sprintf("%d@example.com", user)), ExternalID: fmt.Sprint("cus_", user)})
		for i := 0; i < n && err == nil; i++ {
			err = tx.PutKey(newKey(user, i))
		}
		return err
	}
}

func newKey(user int64, i int) *core.Key {
	id := fmt.Sprintf("key_%d_%d", user, i)
	return &core.Key{AccountID: acct, ID: id, UserID: user, PlanID: fmt.Sprintf("plan_%d", i%3), Status: core.KeyActive,
		Digest: secrets.DigestOf(id), CreatedAt: noon, UpdatedAt: noon}
}

// request returns a request of cost 1 with a key of the account.
func request(key string, user, limit int64, at time.Time) *core.Consumption {
	return &core.Consumption{Account: acct, KeyID: key, UserID: user, Terms: core.Terms{Period: core.Month, Limit: limit}, Cost: 1,
		Entry: core.Entry{At: at, KeyID: key, UserID: user, Endpoint: "/", Method: "GET", Cost: 1}, Retention: time.Hour}
}

// consume makes a request that must not fail, and reports whether the request is allowed.
func consume(t testing.TB, s *Store, c *core.Consumption) bool {
	t.Helper()
	v, err := s.Consume(context.Background(), c)
	if err != nil {
		t.Fatalf("Consume: %v", err)
	}
	return v.Allowed
}

func ofKey(key string) core.CounterID  { return core.CounterID{Account: acct, KeyID: key} }
func ofUser(user int64) core.CounterID { return core.CounterID{Account: acct, UserID: user} }

// counterOf returns a counter.
func counterOf(t testing.TB, s *Store, id core.CounterID) core.Counter {
	t.Helper()
	cs, err := s.Counters(context.Background(), []core.CounterID{id})
	if err != nil {
		t.Fatalf("Counters: %v", err)
	}
	return cs[0]
}

// wantUsed fails unless the usage of a counter in the month, and the number of allowed entries in its history, are want.
func wantUsed(t testing.TB, s *Store, id core.CounterID, want int64) {
	t.Helper()
	c := counterOf(t, s, id)
	if got := c.Requests[core.Month]; got != want {
		t.Errorf("%+v: got %d used, want %d", id, got, want)
	}
	if got := allowedIn(t, s, id); got != want {
		t.Errorf("history of %+v: got %d allowed entries, want %d", id, got, want)
	}
}

// allowedIn returns the number of allowed entries in a history.
func allowedIn(t testing.TB, s *Store, id core.CounterID) (n int64) {
	t.Helper()
	entries, total, err := s.History(context.Background(), id, time.Time{}, core.Page{Number: 1, Size: 1 << 20})
	if err != nil || total != len(entries) {
		t.Fatalf("History: got %d of %d entries, %v", len(entries), total, err)
	}
	for _, e := range entries {
		if !e.Denied {
			n++
		}
	}
	return n
}

// stored returns the paths of all records whose kind is among kinds.
func stored(t testing.TB, s *Store, kinds string) (paths []string) {
	t.Helper()
	err := s.db.View(func(txn *badger.Txn) error {
		return view{txn}.eachFrom(nil, nil, func(p path, _ []byte) (bool, error) {
			if strings.IndexByte(kinds, p[0]) >= 0 {
				paths = append(paths, string(p))
			}
			return true, nil
		})
	})
	if err != nil {
		t.Fatalf("read all records: %v", err)
	}
	return paths
}

// commits replaces the function that runs before each commit.
func (s *Store) commits(fn func() error) {
	s.committing.Lock()
	defer s.committing.Unlock()
	s.beforeCommit = fn
}

// openAlone opens a store without background goroutines. The cleanup of the test closes the store.
func openAlone(t testing.TB, dir string, o Options) *Store {
	t.Helper()
	o.memtable = cmp.Or(o.memtable, smallMemtable)
	s, err := open(dir, o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil && !errors.Is(err, errAbandoned) {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// errAbandoned is why an abandoned store takes no more writes.
var errAbandoned = errors.New("abandoned")

// abandon closes a store and leaves its files as a kill of the process does: it undoes the writes of Badger during the
// close.
func abandon(t testing.TB, s *Store) {
	t.Helper()
	if !s.failed.CompareAndSwap(nil, &errAbandoned) {
		return
	}
	before := databaseFiles(t, s.dir)
	s.events.Abandon()
	if err := s.Close(); !errors.Is(err, errAbandoned) {
		t.Fatalf("Close: got %v, want %v", err, errAbandoned)
	}
	closeLeft(t, s.dir)
	for name := range databaseFiles(t, s.dir) {
		if err := os.Remove(filepath.Join(s.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range before {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// heal heals a failed store without background goroutines, as the background does.
func heal(t testing.TB, s *Store) {
	t.Helper()
	if s.failed.Load() != nil {
		s.heal()
		s.background.stop()
	}
	if err := s.failure(); err != nil {
		t.Fatalf("the store is not healed: %v", err)
	}
}

// closeLeft closes the Badger that Close has left open in a directory, as the end of the process does. The test can then
// open the store again.
func closeLeft(t testing.TB, dir string) {
	t.Helper()
	left, ok := unclosed.LoadAndDelete(dir)
	if !ok {
		return
	}
	s := left.(*Store)
	if err := s.db.Close(); err != nil {
		t.Errorf("close Badger: %v", err)
	}
	s.release()
}

// databaseFiles returns the files of a database by name.
func databaseFiles(t testing.TB, dir string) map[string]string {
	t.Helper()
	read := func() map[string]string {
		files := map[string]string{}
		for _, sub := range []string{databaseDir, imagesDir} {
			list, err := os.ReadDir(filepath.Join(dir, sub))
			for _, file := range list {
				name := filepath.Join(sub, file.Name())
				content, readErr := os.ReadFile(filepath.Join(dir, name))
				if readErr != nil && !errors.Is(readErr, os.ErrNotExist) {
					t.Fatal(readErr)
				}
				files[name] = string(content)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		return files
	}
	for files := read(); ; {
		again := read() // until no file changes, because Badger may be writing tables
		if maps.Equal(files, again) {
			return files
		}
		files = again
	}
}

// copyDatabase copies the files of Badger. copyEventLog copies the files of the event log.
func copyDatabase(t testing.TB, to, from string) {
	t.Helper()
	copyFiles(t, databaseIn(to), databaseIn(from))
	copyFiles(t, imagesIn(to), imagesIn(from))
}

func copyEventLog(t testing.TB, to, from string) {
	t.Helper()
	copyFiles(t, filepath.Join(to, eventLogDir), filepath.Join(from, eventLogDir))
}

// copyKilled copies the files that a kill would leave now. It copies again when Badger changes its tables during the copy.
func copyKilled(t *testing.T, to, from string) {
	t.Helper()
	state := func() string {
		names, err := filepath.Glob(filepath.Join(from, "*", "*"))
		manifest, err2 := os.ReadFile(filepath.Join(databaseIn(from), badger.ManifestFilename))
		inventory, err3 := os.ReadFile(filepath.Join(databaseIn(from), table.InventoryName))
		if errors.Is(err3, os.ErrNotExist) {
			err3 = nil
		}
		if err := errors.Join(err, err2, err3); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%q %s %s", names, manifest, inventory)
	}
	for range 1000 {
		before := state()
		if err := os.RemoveAll(to); err != nil {
			t.Fatal(err)
		}
		copyDatabase(t, to, from)
		copyEventLog(t, to, from)
		if state() == before {
			return
		}
	}
	t.Fatal("the files of Badger never stop changing")
}

func copyFiles(t testing.TB, to, from string) {
	t.Helper()
	list, err := os.ReadDir(from)
	if err := errors.Join(err, os.MkdirAll(to, 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, file := range list {
		if file.Type().IsRegular() && !strings.HasSuffix(file.Name(), "-REWRITE") { // Badger may rename these files at any moment
			copyFile(t, filepath.Join(to, file.Name()), filepath.Join(from, file.Name()))
		}
	}
}

// copyFile copies a file, with holes instead of zeros: Badger creates its logs with their full size.
func copyFile(t testing.TB, to, from string) {
	t.Helper()
	in, err := os.Open(from)
	if errors.Is(err, os.ErrNotExist) { // Badger has deleted the file: copyKilled copies again
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	out, err := os.Create(to)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = out.Close() }()
	size := int64(0)
	for b := make([]byte, 256<<10); ; {
		n, err := in.Read(b)
		if n > 0 && !allZero(b[:n]) {
			if _, err := out.WriteAt(b[:n], size); err != nil {
				t.Fatal(err)
			}
		}
		size += int64(n)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := out.Truncate(size); err != nil {
		t.Fatal(err)
	}
}

// hook is an Options.failpoint that a test can change while the store is open.
type hook struct {
	fn atomic.Pointer[func(failpoint)]
}

func (h *hook) step(at failpoint) {
	if fn := h.fn.Load(); fn != nil {
		(*fn)(at)
	}
}

// once calls fn the next time that the store reaches a failpoint.
func (h *hook) once(at failpoint, fn func()) {
	h.fn.Store(new(func(now failpoint) {
		if now == at {
			h.fn.Store(nil)
			fn()
		}
	}))
}

// keyRef and userRef return the ref of a counter.
func keyRef(t testing.TB, s *Store, id string) ref { return refOf(t, s, ofKey(id)) }
func userRef(t testing.TB, s *Store, id int64) ref { return refOf(t, s, ofUser(id)) }
func refOf(t testing.TB, s *Store, id core.CounterID) (of ref) {
	t.Helper()
	err := s.readEntered(func(r view) (err error) {
		of, err = s.refOf(r, id)
		return err
	})
	if err != nil || of.number == 0 {
		t.Fatalf("refOf %+v: got %+v, %v", id, of, err)
	}
	return of
}

// evict evicts a counter from memory.
func evict(t testing.TB, s *Store, of ref) {
	t.Helper()
	sh := s.counters.shard(of)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for tries := 0; sh.peekLocked(of) != nil; tries++ {
		if !sh.evictLocked(s.events.Written()) && tries > 10 {
			t.Fatalf("%+v is not evicted", of)
		}
	}
}

// errMedium is a fault of the disk.
var errMedium = errors.New("input/output error")

func isUnavailable(err error) bool {
	return errors.Is(err, core.ErrUnavailable)
}

// waitUntil waits until a condition is true. description describes the condition.
func waitUntil(t *testing.T, description string, isTrue func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !isTrue(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not true after %v: %s", patience, description)
		}
	}
}

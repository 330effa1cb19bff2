package badgerstore

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// fileDamages are the kinds of damage in the table of docs/storage.md, see damageFile.
func fileDamages() map[string]func([]byte) []byte {
	used := func(b []byte) []byte { return bytes.TrimRight(b, "\x00") } // logs end with zeros
	m := map[string]func([]byte) []byte{
		"cut 7 bytes": func(b []byte) []byte { return b[:max(0, len(used(b))-7)] },
		"cut half":    func(b []byte) []byte { return b[:len(used(b))/2] },
		"zero 4 KiB": func(b []byte) []byte {
			middle := len(used(b)) / 2
			clear(b[max(0, middle-2048):min(len(b), middle+2048)])
			return b
		},
		"empty":  func([]byte) []byte { return []byte{} },
		"delete": deleted,
	}
	for i := range 8 {
		m[fmt.Sprintf("flip %d", i)] = func(b []byte) []byte {
			if n := len(used(b)); n > 0 {
				b[(n-1)*i/7] ^= 0x10
			}
			return b
		}
	}
	return m
}

// fileKinds are the kinds of files of the database, by patterns for their names. [TestDamagedEventLog] has the rows of
// the event log.
var fileKinds = []string{"*.sst", "MANIFEST", table.InventoryName, "KEYREGISTRY", "*.vlog", "DISCARD", "*.mem"}

// dump returns all data that a store returns: keys, users, keys by secret, counters, histories, and the answer to a
// repeated request id.
func dump(s *Store) (string, error) {
	ctx := context.Background()
	var b bytes.Buffer
	put := func(name string, v any, err error) error {
		if err != nil && !strings.Contains(err.Error(), "not found") {
			return fmt.Errorf("%s: %w", name, err)
		}
		text, _ := json.Marshal(v)
		fmt.Fprintln(&b, name, string(text), err)
		return nil
	}
	users, n, err := s.Users(ctx, acct, core.UserFilter{}, everything)
	if err := put(fmt.Sprint("users ", n), users, err); err != nil {
		return "", err
	}
	keys, n, err := s.Keys(ctx, acct, core.KeyFilter{}, everything)
	if err := put(fmt.Sprint("keys ", n), keys, err); err != nil {
		return "", err
	}
	for i := range damagedKeys {
		for _, secret := range []string{damagedKey(i), "new value of " + damagedKey(i)} {
			k, err := s.KeyByDigest(ctx, secrets.DigestOf(secret))
			if err := put(secret, k, err); err != nil {
				return "", err
			}
		}
	}
	for _, id := range damagedCounters() {
		cs, err := s.Counters(ctx, []core.CounterID{id})
		if err := put(fmt.Sprint("counter ", id), cs, err); err != nil {
			return "", err
		}
		list, n, err := s.History(ctx, id, time.Time{}, everything)
		if err := put(fmt.Sprint("history ", n), list, err); err != nil {
			return "", err
		}
	}
	v, err := s.Consume(ctx, requestWithID())
	err = put("request id", v.FirstTerms, err)
	return b.String(), err
}

const damagedKeys = 60

func damagedKey(i int) string { return fmt.Sprint("key", i) }

func damagedCounters() (list []core.CounterID) {
	for user := int64(1); user <= 8; user++ {
		list = append(list, ofUser(user))
	}
	for i := range damagedKeys {
		list = append(list, ofKey(damagedKey(i)))
	}
	return list
}

func requestWithID() *core.Consumption {
	c := request(damagedKey(1), 1, endless, noon)
	c.RequestID = "id"
	return c
}

// filledStore makes a store with several tables. The newer tables delete, disable and regenerate keys of the older ones,
// and have newer counters. filledStore stops the store cleanly, or copies its files as a kill leaves them a second after
// the last change. want is the dump of the store.
func filledStore(t *testing.T, clean bool) (dir, want string) {
	t.Helper()
	dir = t.TempDir()
	const rounds = 4
	for round := range rounds {
		s := openAlone(t, dir, quiet)
		if round == 0 {
			known(t, s, numbered("key", damagedKeys)...)
			consume(t, s, requestWithID())
		}
		update(t, s, func(tx core.Tx) error { return changeKeys(tx, round) })
		for i := range damagedKeys {
			if _, err := s.Key(t.Context(), acct, damagedKey(i)); err == nil {
				c := request(damagedKey(i), int64(i%8+1), endless, noon.Add(time.Duration(round)*time.Minute))
				c.Shared = i%2 == 0
				consume(t, s, c)
			}
		}
		writeCheckpoint(t, s)
		if round < rounds-1 || clean {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := s.syncEvents(); err != nil {
			t.Fatal(err)
		}
		s.watch()
		killed := t.TempDir()
		copyDatabase(t, killed, dir)
		copyEventLog(t, killed, dir)
		abandon(t, s)
		dir = killed
	}
	return dir, dumpOf(t, dir)
}

// dumpOf returns the dump of a store that is not open. It opens a copy, and leaves the store unchanged.
func dumpOf(t *testing.T, dir string) string {
	t.Helper()
	s, err := open(copyOf(t, dir), quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer abandon(t, s)
	answers, err := dump(s)
	if err != nil {
		t.Fatal(err)
	}
	return answers
}

// changeKeys disables one key, regenerates another one, and deletes a third one.
func changeKeys(tx core.Tx, round int) error {
	k, err := tx.Key(damagedKey(10*round + 4))
	if err != nil {
		return err
	}
	k.Status = core.KeyInactive
	r, err := tx.Key(damagedKey(10*round + 5))
	if err != nil {
		return err
	}
	r.Digest = secrets.DigestOf("new value of " + r.ID)
	return firstOf(tx.PutKey(k), tx.PutKey(r), tx.DeleteKey(damagedKey(10*round+6)))
}

func copyOf(t *testing.T, dir string) string {
	t.Helper()
	to := t.TempDir()
	copyDatabase(t, to, dir)
	if _, err := os.Stat(filepath.Join(dir, eventLogDir)); err == nil {
		copyEventLog(t, to, dir)
	}
	return to
}

// contents returns the contents of the files of a store by name, or the size of a large file. It leaves out
// DISCARD, where Badger keeps no data.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	m := map[string]string{}
	for _, name := range filesIn(t, dir) {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Size() > 1<<20 {
			m[name] = fmt.Sprint(info.Size(), " bytes")
		} else if b, err := os.ReadFile(path); err == nil && filepath.Base(name) != "DISCARD" {
			m[name] = string(b)
		}
	}
	return m
}

// TestDamagedDatabase tests the rows of the database in the table of docs/storage.md. After any damage to a file of the
// database, the store opens with the same data as before.
func TestDamagedDatabase(t *testing.T) {
	for _, clean := range []bool{true, false} {
		dir, want := filledStore(t, clean)
		for _, pattern := range fileKinds {
			files, err := filepath.Glob(filepath.Join(databaseIn(dir), pattern))
			if err != nil {
				continue
			}
			if len(files) == 0 && pattern != "*.mem" {
				t.Errorf("%s: found no file %s", stopName(clean), pattern)
			}
			for _, path := range files {
				for name, damage := range fileDamages() {
					t.Run(fmt.Sprintf("%s/%s/%s", stopName(clean), filepath.Base(path), name), func(t *testing.T) {
						checkHealed(t, dir, want, filepath.Base(path), damage)
					})
				}
			}
		}
	}
}

// checkHealed damages a file in a copy of a store, and opens the copy. It fails unless the store has the same data as before.
func checkHealed(t *testing.T, whole, want, name string, damage func([]byte) []byte) {
	t.Helper()
	dir := copyOf(t, whole)
	damageFile(t, filepath.Join(databaseIn(dir), name), damage)
	s, err := open(dir, quiet)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	defer abandon(t, s)
	if got, err := dump(s); err != nil || got != want {
		t.Errorf("got %v or other data than before: %s", err, firstDifference(got, want))
	}
}

func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			return fmt.Sprintf("line %d: got %.300s, want %.300s", i, g[i], w[i])
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(g), len(w))
}

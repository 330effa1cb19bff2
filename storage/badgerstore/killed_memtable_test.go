package badgerstore

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// memtables returns the paths of the logs of all memtables.
func memtables(t *testing.T, dir string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(databaseIn(dir), "*"+table.LogSuffix))
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// fillMemtable creates keys until Badger begins another memtable. It returns the next unused user.
func fillMemtable(t *testing.T, s *Store, user int64) int64 {
	t.Helper()
	newest := func() string {
		all := memtables(t, s.dir)
		return all[len(all)-1]
	}
	for before := newest(); newest() == before; user++ {
		update(t, s, withKeys(user, 20))
	}
	return user
}

// TestKilledDuringImage: an image begins while a memtable is being flushed, and the process is killed when later memtables are in
// tables. A key that was deleted after the first memtable stays deleted. A failure means that an iterator keeps the log of that
// memtable, and that a start reads it.
func TestKilledDuringImage(t *testing.T) {
	dir, killed := t.TempDir(), t.TempDir()
	s := openAlone(t, dir, Options{Logger: quiet.Logger, memtable: smallMemtable})
	known(t, s, "key")
	gone := newKey(1, 7)
	update(t, s, func(tx core.Tx) error { return tx.PutKey(gone) })
	user := fillMemtable(t, s, 100)
	update(t, s, func(tx core.Tx) error { return tx.DeleteKey(gone.ID) })
	consume(t, s, request("key", 1, endless, noon))
	writeCheckpoint(t, s)
	first := true
	err := s.writeImage(func(int) error {
		if !first {
			return nil
		}
		first = false
		for range 6 {
			user = fillMemtable(t, s, user)
		}
		if err := s.db.Flatten(1); err != nil {
			t.Error(err)
		}
		consume(t, s, request("key", 1, endless, noon))
		writeCheckpoint(t, s)
		copyKilled(t, killed, dir)
		return nil
	})
	if err != nil || first {
		t.Fatalf("writeImage: got %v", err)
	}
	s = openAlone(t, killed, quiet)
	_, byID := s.Key(t.Context(), acct, gone.ID)
	_, byDigest := s.KeyByDigest(t.Context(), gone.Digest)
	if !errors.Is(byID, core.ErrKeyNotFound) || !errors.Is(byDigest, core.ErrKeyNotFound) {
		t.Errorf("the deleted key: got %v and %v, want %v", byID, byDigest, core.ErrKeyNotFound)
	}
	wantUsed(t, s, ofKey("key"), 2)
}

// TestLostMemtable: the log of the memtable is damaged or missing, and the tables are older than the images. The database is rebuilt, and
// history before the images may be removed. A failure means that counters need events which are gone.
func TestLostMemtable(t *testing.T) {
	for name, harm := range map[string]func(path string){
		"changed": func(path string) { changeByte(t, path, 5000) },
		"missing": func(path string) { remove(t, []string{path}) },
	} {
		t.Run(name, func(t *testing.T) {
			dir, killed, o := t.TempDir(), t.TempDir(), quiet
			o.segmentSize = 4 << 10
			s := openAlone(t, dir, o)
			keys := numbered("k", 20)
			known(t, s, keys...)
			for i := range 40 {
				for _, key := range keys {
					c := request(key, 1, endless, noon)
					c.Retention = time.Minute
					consume(t, s, c)
				}
				writeCheckpoint(t, s)
				if i%10 == 9 {
					mustImage(t, s)
				}
			}
			copyKilled(t, killed, dir)
			harm(memtables(t, killed)[0])
			s = openAlone(t, killed, o)
			if err := s.removeHistory(noon.AddDate(1, 0, 0)); err != nil {
				t.Fatal(err)
			}
			for _, key := range keys {
				consume(t, s, request(key, 1, endless, noon))
				if used := counterOf(t, s, ofKey(key)).Requests[core.Month]; used != 41 {
					t.Errorf("%s: got %d used, want 41", key, used)
				}
			}
			writeCheckpoint(t, s)
		})
	}
}

// TestSmallerMemtable: a killed store is opened with smaller memtables, as on a smaller disk. A failure means that Badger ends the process
// at each start.
func TestSmallerMemtable(t *testing.T) {
	killed := t.TempDir()
	s := openAlone(t, t.TempDir(), Options{Logger: quiet.Logger, memtable: 2 * smallMemtable})
	known(t, s, "key")
	const users = 26
	for user := int64(11); user < 11+users; user++ {
		update(t, s, withKeys(user, 500))
	}
	if info, err := os.Stat(memtables(t, s.dir)[0]); err != nil || info.Size() <= 2*smallMemtable {
		t.Fatalf("the log of the memtable: got %+v, %v, want a large one", info, err)
	}
	copyKilled(t, killed, s.dir)
	s = openAlone(t, killed, Options{Logger: quiet.Logger, memtable: smallMemtable})
	if _, n, err := s.Keys(t.Context(), acct, core.KeyFilter{}, core.Page{Number: 1, Size: 1}); err != nil || n != 1+500*users {
		t.Errorf("Keys: got %d, %v, want %d", n, err, 1+500*users)
	}
}

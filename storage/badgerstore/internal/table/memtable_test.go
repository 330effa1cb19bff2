package table

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/dgraph-io/badger/v4"
)

// TestKilledMemtables: a start reads the oldest write-ahead log of a memtable, and removes the later ones and empty ones. When
// a table was written since the inventory, it removes all. A failure means that a start reads transactions without the earlier
// ones.
func TestKilledMemtables(t *testing.T) {
	for name, c := range map[string]struct {
		add  func(dir string) error // what a kill leaves besides
		want bool                   // the transaction is there
	}{
		"killed":          {func(string) error { return nil }, true},
		"a later log":     {func(dir string) error { return os.WriteFile(filepath.Join(dir, "100000.mem"), []byte("x"), 0o600) }, true},
		"an empty log":    {func(dir string) error { return os.WriteFile(filepath.Join(dir, "00002.mem"), nil, 0o600) }, true},
		"an empty vlog":   {func(dir string) error { return os.WriteFile(filepath.Join(dir, "000009.vlog"), nil, 0o600) }, true},
		"a younger table": {grow, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir, killed := t.TempDir(), t.TempDir()
			db := mustOpen(t, dir)
			err := db.Update(func(txn *badger.Txn) error { return txn.Set([]byte("key"), []byte("value")) })
			if err := errors.Join(err, db.StoreState(State{}), os.CopyFS(killed, os.DirFS(dir)), db.Close(), c.add(killed)); err != nil {
				t.Fatal(err)
			}
			db = mustOpen(t, killed)
			defer func() { _ = db.Close() }()
			err = db.View(func(txn *badger.Txn) error { _, err := txn.Get([]byte("key")); return err })
			if (err == nil) != c.want || err != nil && err != badger.ErrKeyNotFound {
				t.Errorf("Get: got %v, want the key: %v", err, c.want)
			}
		})
	}
}

// grow appends an empty change set to the manifest.
func grow(dir string) error {
	file, err := os.OpenFile(filepath.Join(dir, badger.ManifestFilename), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(file, "\x00\x00\x00\x00\x00\x00\x00\x00")
	return errors.Join(err, file.Close())
}

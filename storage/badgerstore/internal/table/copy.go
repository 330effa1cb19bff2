package table

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/dgraph-io/badger/v4"
	btable "github.com/dgraph-io/badger/v4/table"
)

// ErrChanging means that Badger was changing the tables: try again.
var ErrChanging = errors.New("the tables are being changed")

// Copy is a copy, not yet written, of the tables at one moment. It pins these tables: Badger deletes none of them
// before Close.
type Copy struct {
	db       *DB
	pin      *pin
	manifest *manifest
	inv      inventory
}

// NewCopy begins a copy. The tables have all records of the event log before position. The caller calls Write and then
// Close.
func (db *DB) NewCopy(position int64) (*Copy, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.damaged != nil {
		return nil, db.damaged
	}
	p := db.newPin()
	m, err := readManifest(db.o)
	if err == nil && (m == nil || !p.isOf(m)) {
		err = ErrChanging
	}
	if err != nil {
		p.release()
		return nil, err
	}
	return &Copy{db, p, m, db.newInventory(m, p.tables, State{Position: position, Log: db.kept.Log, Time: db.kept.Time})}, nil
}

// isOf reports whether a manifest names the tables of a pin and no others.
func (p *pin) isOf(m *manifest) bool {
	named := map[uint64]bool{}
	for id := range m.tables {
		named[id] = true
	}
	return maps.Equal(p.tables, named)
}

// Close lets Badger delete the tables.
func (c *Copy) Close() { c.pin.release() }

// Write verifies each table and writes it to an empty directory, then MANIFEST, and INVENTORY last. It syncs all
// files. After each table it calls pause with the size of the table in bytes. It ends and returns false when pause
// returns false.
func (c *Copy) Write(dir string, pause func(bytes int) bool) (whole bool, err error) {
	for _, id := range slices.Sorted(maps.Keys(c.pin.tables)) {
		b, err := read(c.db.o, c.db.entry(id), nil)
		if err == nil {
			err = writeSynced(filepath.Join(dir, btable.IDToFilename(id)), b)
		}
		if err != nil || !pause(len(b)) {
			return false, err
		}
	}
	if err := writeSynced(filepath.Join(dir, badger.ManifestFilename), c.manifest.bytes); err != nil {
		return false, err
	}
	return true, c.inv.write(dir)
}

// Restore puts the files of a copy into an empty directory. log is a position up to which the event log is known to be
// on disk.
func Restore(dir, from string, log int64) error {
	inv, err := readInventory(from)
	if err != nil {
		return err
	}
	names := []string{badger.ManifestFilename}
	for _, e := range inv.Tables {
		names = append(names, btable.IDToFilename(e.ID))
	}
	for _, name := range names {
		if err := copyFile(filepath.Join(dir, name), filepath.Join(from, name)); err != nil {
			return err
		}
	}
	inv.Log = max(inv.Log, log)
	return inv.write(dir)
}

func copyFile(to, from string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return writeSynced(to, b)
}

// writeSynced writes and syncs a file.
func writeSynced(path string, b []byte) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(b)
	return errors.Join(err, file.Sync(), file.Close())
}

package badgerstore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/table"
	"github.com/dgraph-io/ristretto/v2/z"
)

// checkTables makes sure that badger can open the tables in a directory: over a damaged
// one it ends the process, in a goroutine of its own where nobody can keep it from that.
// Tables that the manifest does not name are of no use to anybody; badger removes them.
func checkTables(o badger.Options) error {
	file, err := os.Open(filepath.Join(o.Dir, badger.ManifestFilename))
	if errors.Is(err, os.ErrNotExist) {
		return nil // a new store
	}
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	manifest, _, err := badger.ReplayManifestFile(file, o.ExternalMagicVersion, o)
	if err != nil {
		return fmt.Errorf("badger: %s: %s", badger.ManifestFilename, firstLine(err.Error()))
	}
	for id, t := range manifest.Tables {
		if err := checkTable(table.NewFilename(id, o.Dir), table.Options{Compression: t.Compression, BlockSize: o.BlockSize}); err != nil {
			return err
		}
	}
	return nil
}

// checkTable makes sure that the index and the last block of a table can be read.
func checkTable(name string, o table.Options) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("badger: the table %s is damaged", filepath.Base(name))
		}
	}()
	file, err := z.OpenMmapFile(name, os.O_RDONLY, 0)
	if err != nil {
		return fmt.Errorf("badger: the table %s: %s", filepath.Base(name), firstLine(err.Error()))
	}
	t, err := table.OpenTable(file, o)
	if err != nil {
		return fmt.Errorf("badger: the table %s is damaged: %s", filepath.Base(name), firstLine(err.Error()))
	}
	return t.Close(-1)
}

package badgerstore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// Exists reports whether a directory has a store in it, also one that has lost files, or any other
// database of badger. It changes nothing: [Open] would make one.
func Exists(dir string) (bool, error) {
	for _, name := range []string{badger.ManifestFilename, table.InventoryName} {
		_, err := os.Stat(filepath.Join(dir, name))
		if err == nil {
			return true, nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			return false, fmt.Errorf("look for a store in %s: %w", dir, advised(dir, err))
		}
	}
	return witness(dir) != "", nil
}

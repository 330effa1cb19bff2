package badgerstore

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/dgraph-io/badger/v4"
)

// Exists reports whether a directory has a store in it, or any other database of badger.
// It changes nothing: [Open] would make one.
func Exists(dir string) (bool, error) {
	_, err := os.Stat(filepath.Join(dir, badger.ManifestFilename))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

package badgerstore

import (
	"errors"
	"fmt"
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
	if err != nil {
		return false, fmt.Errorf("look for a store in %s: %w", dir, advised(dir, err))
	}
	return true, nil
}

package table

import (
	"errors"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"

	"github.com/dgraph-io/badger/v4"
	btable "github.com/dgraph-io/badger/v4/table"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// manifest is Badger's list of the tables: a magic number and then change sets, each with its
// length and checksum. Badger appends to it, and rewrites it as one change set when 10,000 tables
// were deleted. It takes an incomplete change set for a torn write, and cuts off this change set
// and all later ones.
type manifest struct {
	tables map[uint64]badger.TableManifest
	bytes  []byte // all complete change sets
}

// manifestHead is the length of the magic number and of the length and checksum of the first change
// set. They change when Badger rewrites the file.
const manifestHead = 8 + 8

// readManifest reads the manifest in a directory. It returns nil without a manifest.
func readManifest(o badger.Options) (*manifest, error) {
	file, err := os.Open(filepath.Join(o.Dir, badger.ManifestFilename))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	replayed, whole, err := badger.ReplayManifestFile(file, o.ExternalMagicVersion, o)
	if err != nil {
		return nil, damage(badger.ManifestFilename, "%v", err)
	}
	if whole < manifestHead {
		return nil, damage(badger.ManifestFilename, "it is cut off at byte %d", whole)
	}
	m := &manifest{replayed.Tables, make([]byte, whole)}
	_, err = io.ReadFull(io.NewSectionReader(file, 0, whole), m.bytes)
	return m, err
}

func (m *manifest) head() string { return string(m.bytes[:manifestHead]) }

func (m *manifest) checksum(length int64) uint32 { return crc32.Checksum(m.bytes[:length], castagnoli) }

// follows returns an error unless the manifest begins with the bytes that the inventory describes, or
// Badger has rewritten the manifest since.
func (m *manifest) follows(inv *inventory) error {
	length := int64(len(m.bytes))
	switch {
	case m.head() != string(inv.Head):
		if m.bytes[8]|m.bytes[9]|m.bytes[10]|m.bytes[11] == 0 { // a new one, without a table
			return damage(badger.ManifestFilename, "the file was replaced by a new one that names no table")
		}
	case length < inv.Length:
		return damage(badger.ManifestFilename, "it is cut off or unreadable from byte %d on, and was %d bytes long", length, inv.Length)
	case m.checksum(inv.Length) != inv.Checksum:
		return damage(badger.ManifestFilename, "its first %d bytes were changed", inv.Length)
	}
	return nil
}

// listsAll returns an error unless the manifest lists all tables on disk. Without an inventory, only a table that is not
// listed shows a lost end of the manifest. A kill can leave such a table, too.
func (m *manifest) listsAll(dir string) error {
	paths, err := filepath.Glob(filepath.Join(dir, "*"+Suffix))
	for _, path := range paths {
		id, ok := btable.ParseFileID(path)
		if _, listed := m.tables[id]; ok && !listed {
			return damage(badger.ManifestFilename, "it does not list %s, and %s is missing: limitkeeper rebuild mends this", filepath.Base(path), InventoryName)
		}
	}
	return err
}

package table

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/dgraph-io/badger/v4"
)

// InventoryName is the name of the file that says how the database was left. Badger's own files do not show a lost end of
// the manifest, the list of the tables: Badger takes an incomplete entry for a torn write, and cuts off this entry and all later
// ones. Badger rewrites a manifest when 10,000 tables were deleted. After a kill in the second after that, the next start takes
// the new manifest for damage.
const InventoryName = "INVENTORY"

const inventoryMagic = "limitkeeper inventory 2"

// inventory describes the files that the database must have on disk.
type inventory struct {
	State
	Boot     uint64 `json:"boot"`             // of the machine that has opened the database
	Closed   bool   `json:"closed,omitempty"` // see [DB.Finish]
	Length   int64  `json:"length"`           // bytes of the manifest, to which Badger appends
	Checksum uint32 `json:"checksum"`         // CRC-32C of the first Length bytes of the manifest
	Memtable int64  `json:"memtable"`         // its size in bytes: Badger ends the process when it reads the log of a larger one

	current bool // the manifest has not changed since the inventory was written; set by matches
}

// State says what the database contains.
type State struct {
	Position int64 `json:"position"` // in the event log: the database has all records before it
	Log      int64 `json:"log"`      // position up to which the event log is on disk
	Time     int64 `json:"time"`     // of the clock of the store, Unix seconds; 0 when unknown
	Verified int64 `json:"verified"` // when the owner verified all files last, Unix seconds; 0 for never
}

// readInventory reads the inventory of a directory. A missing one is damage.
func readInventory(dir string) (inv inventory, err error) {
	b, err := readFile(dir, InventoryName)
	head, body, _ := bytes.Cut(b, []byte("\n"))
	if err == nil && (string(head) != inventoryHead(body) || json.Unmarshal(body, &inv) != nil) {
		return inventory{}, damage(InventoryName, "its checksum is wrong")
	}
	return inv, err
}

// ReadState returns the state of the last [DB.StoreState] of a database that is not open, and whether the database was
// closed.
func ReadState(dir string) (s State, closed bool, err error) {
	inv, err := readInventory(dir)
	return inv.State, inv.Closed, err
}

// Boot returns a number that identifies the current boot of the machine, 0 when unknown. Linux chooses a random number at
// each boot.
func Boot() uint64 {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return 0
	}
	return uint64(crc32.ChecksumIEEE(id))<<32 | uint64(crc32.Checksum(id, castagnoli))
}

func inventoryHead(body []byte) string {
	return fmt.Sprintf("%s %08x", inventoryMagic, crc32.Checksum(body, castagnoli))
}

// castagnoli is the polynomial of all checksums of this package.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// readManifest returns the bytes of the manifest. A missing one is damage.
func readManifest(dir string) ([]byte, error) { return readFile(dir, badger.ManifestFilename) }

// readFile reads a file that each database has. A missing one is damage.
func readFile(dir, name string) ([]byte, error) {
	b, err := os.ReadFile(filepath.Join(dir, name))
	if errors.Is(err, os.ErrNotExist) {
		return nil, damage(name, "the file is missing")
	}
	return b, err
}

// tablesIn returns the numbers of the tables that the manifest lists, in ascending order.
func tablesIn(dir string) ([]uint64, error) {
	file, err := os.Open(filepath.Join(dir, badger.ManifestFilename))
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	m, whole, err := badger.ReplayManifestFile(file, 0, badger.DefaultOptions(dir).WithLogger(nil))
	if err != nil {
		return nil, damage(badger.ManifestFilename, "%v", err)
	}
	info, err := file.Stat()
	if err == nil && whole < info.Size() {
		err = damage(badger.ManifestFilename, "it cannot be read from byte %d on", whole)
	}
	return slices.Sorted(maps.Keys(m.Tables)), err
}

// matches returns an error unless a manifest begins with the bytes that the inventory describes.
func (inv *inventory) matches(manifest []byte) error {
	switch length := int64(len(manifest)); {
	case length < inv.Length:
		return damage(badger.ManifestFilename, "it is cut off at byte %d, and was %d bytes long", length, inv.Length)
	case crc32.Checksum(manifest[:inv.Length], castagnoli) != inv.Checksum:
		return damage(badger.ManifestFilename, "its first %d bytes were changed", inv.Length)
	default:
		inv.current = length == inv.Length
		return nil
	}
}

// describe describes a manifest, and writes the inventory.
func (inv *inventory) describe(manifest []byte, dir string) error {
	inv.Length, inv.Checksum = int64(len(manifest)), crc32.Checksum(manifest, castagnoli)
	return inv.write(dir)
}

// write syncs the manifest and the directory, and then replaces the inventory on disk.
func (inv *inventory) write(dir string) error {
	body, err := json.Marshal(inv)
	if err != nil {
		return err
	}
	if err := errors.Join(syncPath(filepath.Join(dir, badger.ManifestFilename)), syncPath(dir)); err != nil {
		return err
	}
	name := filepath.Join(dir, InventoryName)
	file, err := os.OpenFile(name+"-REWRITE", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(file, "%s\n%s", inventoryHead(body), body)
	if err = errors.Join(err, file.Sync(), file.Close()); err == nil {
		err = os.Rename(file.Name(), name)
	}
	return errors.Join(err, syncPath(dir))
}

// syncPath syncs a file or a directory.
func syncPath(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	return file.Sync()
}

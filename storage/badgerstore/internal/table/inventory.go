package table

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
)

// InventoryName is the name of the file that says which tables there are and how long the
// manifest is. Badger's own files cannot say so: it takes a manifest without its end for a torn write.
const InventoryName = "INVENTORY"

const inventoryMagic = "limitkeeper inventory 1"

// inventory says which content of the database is on disk.
type inventory struct {
	Mark
	Head     []byte       `json:"head"`     // the beginning of the manifest
	Length   int64        `json:"length"`   // of the manifest, in bytes
	Checksum uint32       `json:"checksum"` // CRC-32C of so much of the manifest
	Tables   []entry      `json:"tables"`
	Damaged  *DamageError `json:"damaged,omitempty"` // of a table that a compaction has read

	Replayable bool `json:"replayable,omitempty"` // see [DB.Replayable]
}

// Mark is how far a store has got: what its owner knows of a checkpoint.
type Mark struct {
	Position int64 `json:"position"` // in the event log: the tables have everything before it
	Log      int64 `json:"log"`      // up to where the event log is on disk
	Time     int64 `json:"time"`     // of the clock that the owner counts by, Unix seconds; 0 when it is unknown
}

// entry is a table in an inventory.
type entry struct {
	ID          uint64                  `json:"id"`
	Compression options.CompressionType `json:"compression"`
}

// readInventory reads the inventory of a directory. It returns nil when there is none: the
// database is new, or was written before there were inventories.
func readInventory(dir string) (*inventory, error) {
	b, err := os.ReadFile(filepath.Join(dir, InventoryName))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	head, body, _ := bytes.Cut(b, []byte("\n"))
	inv := new(inventory)
	if string(head) != inventoryHead(body) || json.Unmarshal(body, inv) != nil || len(inv.Head) != manifestHead {
		return nil, damage(InventoryName, "its checksum is wrong")
	}
	return inv, nil
}

// ReadMark returns the mark of the last [DB.Checkpoint] of a database that nobody has open, the zero
// Mark without an inventory.
func ReadMark(dir string) (Mark, error) {
	inv, err := readInventory(dir)
	if inv == nil {
		return Mark{}, err
	}
	return inv.Mark, err
}

func inventoryHead(body []byte) string {
	return fmt.Sprintf("%s %08x", inventoryMagic, crc32.Checksum(body, castagnoli))
}

// write syncs the manifest and the names of the tables, and then replaces the inventory on disk.
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
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(file.Name(), name); err != nil {
		return err
	}
	return syncPath(dir)
}

// syncPath brings a file, or the names in a directory, to the disk.
func syncPath(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	return file.Sync()
}

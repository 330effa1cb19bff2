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
	"sync"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
	btable "github.com/dgraph-io/badger/v4/table"
)

// InventoryName is the name of the file that lists the tables and has the length of the manifest. Badger's own files
// do not show a lost end of the manifest: Badger takes it for a torn write.
const InventoryName = "INVENTORY"

const inventoryMagic = "limitkeeper inventory 1"

// inventory describes the files that the database must have on disk.
type inventory struct {
	State
	Head     []byte       `json:"head"`     // the beginning of the manifest
	Length   int64        `json:"length"`   // of the manifest, in bytes
	Checksum uint32       `json:"checksum"` // CRC-32C of the first Length bytes of the manifest
	Tables   []entry      `json:"tables"`
	Damaged  *DamageError `json:"damaged,omitempty"` // the damage of a table that a compaction has merged

	Verified int64 `json:"verified,omitempty"` // see [DB.SetVerified]
}

// State says what the tables contain at a checkpoint.
type State struct {
	Position int64 `json:"position"` // in the event log: the tables have all records before it
	Log      int64 `json:"log"`      // position up to which the event log is on disk
	Time     int64 `json:"time"`     // of the clock of the store, Unix seconds; 0 when unknown
}

// entry is a table in an inventory.
type entry struct {
	ID          uint64                  `json:"id"`
	Compression options.CompressionType `json:"compression"`
	Tail        []byte                  `json:"tail,omitempty"` // the last bytes of the file, see tailOf; none if they could not be read
}

// tailBytes is the length of entry.Tail: the length of the index of the table, and the checksum of the index. The index has the first key with
// its version and the place of each block, the number of keys and the latest version.
const tailBytes = 20

// tailOf returns the last bytes of a table. They tell a whole table from another one under its name. On an error it returns none: the
// table is verified all the same.
func tailOf(dir string, id uint64) []byte {
	f, err := os.Open(btable.NewFilename(id, dir))
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	tail := make([]byte, tailBytes)
	if info, err := f.Stat(); err != nil || info.Size() < tailBytes {
		return nil
	} else if _, err := f.ReadAt(tail, info.Size()-tailBytes); err != nil {
		return nil
	}
	return tail
}

// tails has the last bytes of tables, by ID, as they were when the database first had the table.
type tails struct {
	mu sync.Mutex
	of map[uint64][]byte
}

// newTails returns the last bytes of the tables in an inventory, none for nil.
func newTails(inv *inventory) *tails {
	t := &tails{of: map[uint64][]byte{}}
	if inv != nil {
		for _, e := range inv.Tables {
			t.of[e.ID] = e.Tail
		}
	}
	return t
}

// get returns the last bytes of a table, nil if they are not known.
func (t *tails) get(id uint64) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.of[id]
}

// add reads the last bytes of a new table.
func (t *tails) add(dir string, id uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of[id] == nil {
		t.of[id] = tailOf(dir, id)
	}
}

// keep forgets all other tables.
func (t *tails) keep(tables map[uint64]bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.of, func(id uint64, _ []byte) bool { return !tables[id] })
}

// readInventory reads the inventory of a directory. It returns nil without an inventory: the database is new, the
// inventory is lost, or another program has written the database.
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

// ReadState returns the state of the last [DB.StoreState] of a database that is not open. It returns the zero State
// without an inventory.
func ReadState(dir string) (State, error) {
	inv, err := readInventory(dir)
	if inv == nil {
		return State{}, err
	}
	return inv.State, err
}

func inventoryHead(body []byte) string {
	return fmt.Sprintf("%s %08x", inventoryMagic, crc32.Checksum(body, castagnoli))
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
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(file.Name(), name); err != nil {
		return err
	}
	return syncPath(dir)
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

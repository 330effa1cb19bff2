package table

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
	btable "github.com/dgraph-io/badger/v4/table"
)

// The suffixes of Badger's files: of a table, of the write-ahead log of a memtable, and of a value log, which stays empty.
const (
	Suffix         = ".sst"
	LogSuffix      = ".mem"
	ValueLogSuffix = ".vlog"
)

// verify reads and verifies a table. It returns the number of bytes read.
func verify(o badger.Options, e entry) (n int, err error) {
	b, err := read(o, e)
	return len(b), err
}

// read reads every byte of a table through its file, and checks every checksum. Reading a truncated table through mapped
// memory would end the process.
func read(o badger.Options, e entry) (b []byte, err error) {
	name := btable.IDToFilename(e.ID)
	defer func() {
		if p := recover(); p != nil { // Badger panics on an invalid index or block
			err = damage(name, "a block is invalid")
		}
	}()
	b, err = os.ReadFile(filepath.Join(o.Dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, damage(name, "the file is missing")
	}
	if err != nil {
		return nil, err
	}
	t, err := btable.OpenInMemoryTable(b, e.ID, &btable.Options{Compression: e.Compression, BlockSize: o.BlockSize, ChkMode: options.OnBlockRead})
	if err == nil {
		err = t.VerifyChecksum()
	}
	if err != nil {
		return b, damage(name, "%v", err)
	}
	return b, nil
}

// found has the manifest, the inventory and the tables of a database that is not open.
type found struct {
	manifest  *manifest  // nil without a manifest
	inventory *inventory // nil without an inventory
	tables    []entry    // the tables of both to verify, by ID

	replayable bool // see [Files.IsReplayable]
}

// look reads the manifest and the inventory, and compares them with each other and with the files.
func look(o badger.Options, from Options) (*found, error) {
	inv, err := readInventory(o.Dir)
	if err != nil {
		return nil, err
	}
	m, err := readManifest(o)
	if err != nil {
		return nil, err
	}
	if m == nil {
		return &found{replayable: true}, withoutManifest(o.Dir, inv, from.Witness)
	}
	f := &found{manifest: m, inventory: inv, replayable: inv != nil && inv.Replayable}
	for id, t := range m.tables {
		f.tables = append(f.tables, entry{id, t.Compression})
	}
	if inv == nil && from.Replays != nil {
		f.replayable, err = from.Replays(func(key []byte) ([]byte, error) {
			values, err := f.get(o, key)
			if err != nil {
				return nil, err
			}
			return values[0], nil
		})
		if err != nil {
			return nil, err
		}
	}
	if err := checkHeads(o.Dir, f.replayable); err != nil {
		return nil, err
	}
	switch err = nil; {
	case inv == nil && f.replayable:
		err = m.listsAll(o.Dir)
	case inv != nil:
		err = m.follows(inv)
		if inv.Damaged != nil { // the tables of the compaction are incomplete, even if the merged table can be read now
			err = inv.Damaged
		}
		f.addKept(o.Dir)
	}
	slices.SortFunc(f.tables, func(a, b entry) int { return int(a.ID) - int(b.ID) })
	return f, err
}

// checkHeads checks the first bytes of Badger's key registry and logs. Badger checks them too, but only after it has
// changed other files. checkHeads skips write-ahead logs of memtables that Open removes.
func checkHeads(dir string, replayable bool) error {
	names, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range names {
		var at int64
		want := make([]byte, 8) // the number of the key that a log is encrypted with: none
		switch suffix := filepath.Ext(entry.Name()); {
		case entry.Name() == badger.KeyRegistryFileName:
			at, want = 16, []byte(registryText)
		case suffix != LogSuffix && suffix != ValueLogSuffix, suffix == LogSuffix && replayable:
			continue
		}
		if err := checkHead(dir, entry.Name(), at, want); err != nil {
			return err
		}
	}
	return nil
}

// registryText follows 16 random bytes in the key registry of a database without encryption.
const registryText = "Hello Badger"

// checkHead returns an error unless a file has the bytes want at an offset. A log may be shorter, because a kill can leave
// a short log.
func checkHead(dir, name string, at int64, want []byte) error {
	file, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	got := make([]byte, len(want))
	n, err := file.ReadAt(got, at)
	switch {
	case err != nil && err != io.EOF:
		return err
	case n < len(want) && at == 0, bytes.Equal(got, want):
		return nil
	}
	return damage(name, "its header is invalid")
}

// addKept adds the tables that were compacted after the inventory was written, and whose files were kept for verification.
// A block that the compaction could not read is in no other table.
func (f *found) addKept(dir string) {
	for _, e := range f.inventory.Tables {
		if _, named := f.manifest.tables[e.ID]; named {
			continue
		}
		if _, err := os.Stat(btable.NewFilename(e.ID, dir)); err == nil {
			f.tables = append(f.tables, e)
		}
	}
}

// withoutManifest returns an error if the directory had a database: without a manifest, Badger would delete the tables
// and create an empty database. Badger creates the manifest before any other file of these kinds.
func withoutManifest(dir string, inv *inventory, witness string) error {
	missing := func(why string) error {
		return damage(badger.ManifestFilename, "the file is missing, but %s exists", why)
	}
	if inv != nil {
		return missing(InventoryName)
	}
	names, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, entry := range names {
		for _, suffix := range []string{Suffix, LogSuffix, ValueLogSuffix} {
			if strings.HasSuffix(entry.Name(), suffix) {
				return missing(entry.Name())
			}
		}
	}
	if witness != "" {
		return missing(witness)
	}
	return nil
}

// Progress is the progress of a verification.
type Progress struct {
	Tables, Of int
	Bytes      int64
}

// verifyAll verifies tables, and passes each damage to report. It ends when report returns an error.
func verifyAll(o badger.Options, tables []entry, progress func(Progress), report func(error) error) error {
	p := Progress{Of: len(tables)}
	for _, e := range tables {
		n, err := verify(o, e)
		if err != nil && report(err) != nil {
			return err
		}
		p.Tables, p.Bytes = p.Tables+1, p.Bytes+int64(n)
		progress(p)
	}
	return nil
}

// Check verifies the files of a database that is not open, and passes each damage to report. It changes no file. It
// returns the position up to which the event log was on disk.
func Check(from Options, progress func(Progress), report func(error)) (position int64, err error) {
	o := badgerOptions(from.Dir, from.Logger)
	f, err := look(o, from)
	if err != nil && !errors.Is(err, ErrDamaged) {
		return 0, err
	}
	if err != nil {
		report(err)
	}
	if f == nil {
		return 0, nil
	}
	if f.inventory != nil {
		position = f.inventory.Log
	}
	err = verifyAll(o, f.tables, progress, func(err error) error {
		if errors.Is(err, ErrDamaged) {
			report(err)
			return nil
		}
		return err
	})
	if err != nil {
		return position, fmt.Errorf("verify the tables: %w", err)
	}
	return position, nil
}

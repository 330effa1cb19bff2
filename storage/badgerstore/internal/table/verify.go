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
	"github.com/dgraph-io/badger/v4/fb"
	"github.com/dgraph-io/badger/v4/options"
	"github.com/dgraph-io/badger/v4/pb"
	btable "github.com/dgraph-io/badger/v4/table"
	"github.com/dgraph-io/badger/v4/y"
	"github.com/klauspost/compress/snappy"
	"google.golang.org/protobuf/proto"
)

// The suffixes of Badger's files: of a table, of the write-ahead log of a memtable, and of a value log, which stays empty.
const (
	Suffix         = ".sst"
	LogSuffix      = ".mem"
	ValueLogSuffix = ".vlog"
)

// read reads every byte of a table through its file into buf, or into new memory if buf is too small. It checks every
// checksum. Reading a truncated table through mapped memory would end the process.
func read(o badger.Options, e entry, buf []byte) (b []byte, err error) {
	name := btable.IDToFilename(e.ID)
	defer func() {
		if p := recover(); p != nil { // Badger, verifyBlocks and cutLast panic on an invalid length or offset
			err = damage(name, "a block is invalid")
		}
	}()
	b, err = readFile(filepath.Join(o.Dir, name), buf)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, damage(name, "the file is missing")
	}
	if err != nil {
		return nil, err
	}
	t, err := btable.OpenInMemoryTable(b, e.ID, &btable.Options{Compression: e.Compression, BlockSize: o.BlockSize, ChkMode: options.OnBlockRead})
	if err == nil {
		err = verifyBlocks(b, t, e)
	}
	if err != nil {
		return b, damage(name, "%v", err)
	}
	if !bytes.HasSuffix(b, e.Tail) {
		return b, damage(name, "the file is another table than %s has", InventoryName)
	}
	return b, nil
}

// verifyBlocks verifies the checksum of each block of a table in memory. [btable.Table.VerifyChecksum] does the same, but
// decompresses each block into new memory, and keeps all blocks until it returns. verifyBlocks reuses one buffer. After a
// checkpoint of a million counters, Badger has merged about 100 tables; to verify them takes 0.11 s of CPU time in place of
// 0.48 s.
//
// table/builder.go of Badger describes a table. It ends with the index, the length of the index, the checksum of the index,
// and the length of the checksum. A block ends with a checksum and the length of the checksum. Tables of Limitkeeper are
// compressed by Snappy; a table with another compression is left to VerifyChecksum.
func verifyBlocks(b []byte, t *btable.Table, e entry) error {
	if e.Compression != options.Snappy {
		return t.VerifyChecksum()
	}
	b = b[:len(b):len(b)] // behind it, the buffer has bytes of an earlier table
	rest, _ := cutLast(b) // the checksum was verified when the table was opened
	_, indexBytes := cutLast(rest)
	index := fb.GetRootAsTableIndex(indexBytes, 0)
	var at fb.BlockOffset
	var block []byte
	for i := range index.OffsetsLength() {
		index.Offsets(&at, i)
		var err error
		if block, err = snappy.Decode(block[:cap(block)], b[at.Offset():at.Offset()+at.Len()]); err != nil {
			return fmt.Errorf("block %d: %w", i, err)
		}
		var want pb.Checksum
		content, sum := cutLast(block)
		if err = proto.Unmarshal(sum, &want); err == nil {
			err = y.VerifyChecksum(content, &want)
		}
		if n := len(content) - 4; err == nil && uint64(y.BytesToU32(content[n:]))*4 > uint64(n) { // panics on a shorter block
			err = errors.New("its list of entries is too long")
		}
		if err != nil {
			return fmt.Errorf("block %d: %w", i, err)
		}
	}
	return nil
}

// cutLast cuts off the last field. The last 4 bytes of b are the length of that field. It panics on an invalid length.
func cutLast(b []byte) (rest, field []byte) {
	end := len(b) - 4
	start := end - int(y.BytesToU32(b[end:]))
	return b[:start], b[start:end]
}

// readFile reads a file into buf, or into new memory if the file does not fit. The result may share the memory of buf. If the
// file is truncated meanwhile, the result is shorter.
func readFile(path string, buf []byte) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	b := slices.Grow(buf[:0], int(info.Size()))[:info.Size()]
	n, err := io.ReadFull(file, b)
	if err == io.EOF || err == io.ErrUnexpectedEOF { // it was truncated after Stat
		err = nil
	}
	return b[:n], err
}

// found has the manifest, the inventory and the tables of a database that is not open.
type found struct {
	manifest  *manifest  // nil without a manifest
	inventory *inventory // nil without an inventory
	tables    []entry    // the tables of both to verify, by ID

	// ours is true for a database that this package has written: it has an inventory or a witness. The event log then has all
	// records of the memtables.
	ours bool
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
		return &found{}, withoutManifest(o.Dir, inv, from.Witness)
	}
	f := &found{manifest: m, inventory: inv, ours: inv != nil || from.Witness != ""}
	tails := newTails(inv)
	for id, t := range m.tables {
		f.tables = append(f.tables, entry{id, t.Compression, tails.get(id)})
	}
	if err := checkHeads(o.Dir, f.ours); err != nil {
		return nil, err
	}
	switch err = nil; {
	case inv == nil && f.ours:
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
func checkHeads(dir string, ours bool) error {
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
		case suffix != LogSuffix && suffix != ValueLogSuffix, suffix == LogSuffix && ours:
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
	var b []byte
	var err error
	p := Progress{Of: len(tables)}
	for _, e := range tables {
		b, err = read(o, e, b)
		if err != nil && report(err) != nil {
			return err
		}
		p.Tables, p.Bytes = p.Tables+1, p.Bytes+int64(len(b))
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

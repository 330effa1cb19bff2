package table

import (
	"bytes"
	"os"
	"testing"

	"github.com/dgraph-io/badger/v4/fb"
	"github.com/dgraph-io/badger/v4/options"
	btable "github.com/dgraph-io/badger/v4/table"
)

// tableBytes returns a table of several blocks.
func tableBytes(t *testing.T) []byte {
	t.Helper()
	dir := t.TempDir()
	layered(t, dir, 1)
	b, err := os.ReadFile(tableFiles(t, dir)[0])
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// fails reports whether a function returns an error or panics: read turns both into damage.
func fails(fn func() error) (failed bool) {
	defer func() { failed = failed || recover() != nil }()
	return fn() != nil
}

// TestVerifyBlocks: verifyBlocks finds the same damage as Badger, for every damaged byte of a table.
func TestVerifyBlocks(t *testing.T) {
	whole := tableBytes(t)
	failed := func(verify func(*btable.Table) error, b []byte) bool {
		return fails(func() error {
			tab, err := btable.OpenInMemoryTable(b, 1, &btable.Options{Compression: options.Snappy, BlockSize: 4 << 10, ChkMode: options.OnBlockRead})
			if err != nil {
				return err
			}
			return verify(tab)
		})
	}
	damages := 0
	for i := -1; i < len(whole); i++ {
		b := bytes.Clone(whole)
		if i >= 0 {
			b[i] ^= 0x10
		}
		ours := func(*btable.Table) error { return verifyBlocks(b) }
		got, want := failed(ours, b), failed((*btable.Table).VerifyChecksum, b)
		if got != want {
			t.Errorf("byte %d: found %v, and Badger %v", i, got, want)
		}
		if want {
			damages++
		}
	}
	if damages < len(whole)/2 {
		t.Errorf("%d of %d bytes are damage for Badger, want most of them", damages, len(whole))
	}
}

// TestVerifyBlocksBehindEnd: a block behind the end of a table is damage, even if an earlier table has left a valid block
// there in the buffer.
func TestVerifyBlocksBehindEnd(t *testing.T) {
	b := tableBytes(t)
	rest, _ := cutLast(b)
	_, index := cutLast(rest)
	var at fb.BlockOffset
	fb.GetRootAsTableIndex(index, 0).Offsets(&at, 1)
	block := bytes.Clone(b[at.Offset() : at.Offset()+at.Len()])
	if !at.MutateOffset(uint32(len(b))) {
		t.Fatal("the index has no offset to change")
	}
	buffer := append(b, block...)
	if !fails(func() error { return verifyBlocks(buffer[:len(b)]) }) {
		t.Error("a block behind the end was verified")
	}
}

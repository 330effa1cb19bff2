package table

import (
	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
	btable "github.com/dgraph-io/badger/v4/table"
	"github.com/dgraph-io/badger/v4/y"
)

// Files are the verified files of a database that is not open.
type Files struct {
	Options // of [Files.Open]
	badger  badger.Options
	found   *found
}

// Inspect reads and verifies all files of a database, and changes no file. Of a temporary database it does not verify the
// tables. It returns the same errors as [Open].
func Inspect(o Options) (*Files, error) {
	f := &Files{Options: o, badger: badgerOptions(o.Dir, o.Logger)}
	if o.Memtable > 0 && o.Memtable < DefaultMemtable {
		f.badger = f.badger.WithMemTableSize(o.Memtable).WithValueThreshold(o.Memtable / 7) // Badger bounds it, and transactions, to 15 %
	}
	if o.Temporary {
		f.badger = temporary(f.badger)
	}
	var err error
	if f.found, err = look(f.badger, o); err != nil {
		return nil, err
	}
	if o.Temporary {
		return f, nil
	}
	return f, verifyAll(f.badger, f.found.tables, logProgress(o.Logger), func(err error) error { return err })
}

// State returns the state of the last [DB.StoreState].
func (f *Files) State() State {
	if f.found.inventory == nil {
		return State{}
	}
	return f.found.inventory.State
}

// Get returns the newest values of keys in the tables, nil for a key that no table has. It reads each table once.
func (f *Files) Get(keys ...[]byte) (values [][]byte, err error) {
	values, newest := make([][]byte, len(keys)), make([]uint64, len(keys))
	for _, e := range f.found.tables {
		b, err := read(f.badger, e, nil)
		if err != nil {
			return nil, err
		}
		t, err := btable.OpenInMemoryTable(b, e.ID, &btable.Options{Compression: e.Compression, BlockSize: f.badger.BlockSize, ChkMode: options.OnBlockRead})
		if err != nil {
			return nil, err
		}
		for i, key := range keys {
			if t.DoesNotHave(y.Hash(key)) {
				continue
			}
			it := t.NewIterator(btable.NOCACHE)
			it.Seek(y.KeyWithTs(key, ^uint64(0))) // the newest version of the key comes first
			if it.Valid() && y.SameKey(it.Key(), y.KeyWithTs(key, 0)) && y.ParseTs(it.Key()) >= newest[i] {
				newest[i], values[i] = y.ParseTs(it.Key()), it.ValueCopy().Value
			}
			_ = it.Close()
		}
	}
	return values, nil
}

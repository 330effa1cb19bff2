package table

import "github.com/dgraph-io/badger/v4"

// A compaction takes a block that it cannot read for the end of the table, and then deletes the table. So each
// table is verified before Badger deletes it. A pin is an iterator that never moves: while it is open, Badger keeps
// the files of all tables at that moment. [DB.StoreState] takes a new pin, verifies the tables that only the old pin
// has, writes the inventory, and then releases the old pin. Then Badger deletes these tables. A table that is written
// and compacted between two calls is not verified: it is a few seconds old at most. compaction.go handles
// compactions that cannot create all of their tables.

// pin keeps the files of the tables and memtables that existed when it was taken.
type pin struct {
	txn      *badger.Txn
	iterator *badger.Iterator
	tables   map[uint64]bool
}

// newPin takes a pin. A pinned table exists both before and after newPin opens the iterator.
func (db *DB) newPin() *pin {
	before := db.ids()
	p := &pin{txn: db.NewTransaction(false), tables: map[uint64]bool{}}
	o := badger.DefaultIteratorOptions
	o.PrefetchValues = false
	p.iterator = p.txn.NewIterator(o)
	for id := range db.ids() {
		if before[id] {
			p.tables[id] = true
		}
	}
	return p
}

// ids returns the IDs of the tables.
func (db *DB) ids() map[uint64]bool {
	ids := map[uint64]bool{}
	for _, t := range db.DB.Tables() {
		ids[t.ID] = true
	}
	return ids
}

// release lets Badger delete the tables. The database must be open.
func (p *pin) release() {
	p.iterator.Close()
	p.txn.Discard()
}

package table

import "github.com/dgraph-io/badger/v4"

// A compaction takes a block that it cannot read for the end of its table, and then deletes the
// table. So no table is deleted before it was verified. A pin is an iterator that is never
// moved: Badger keeps the files of its tables. [DB.Checkpoint] takes a new pin, verifies the
// tables that only the old pin has, writes the inventory and then releases the old pin. Then
// Badger deletes these tables. A table that is made and compacted between two calls is not
// verified: it is at most seconds old. A compaction without all of its tables: compaction.go.

// pin keeps the files of tables, and of the memtables of that moment.
type pin struct {
	txn      *badger.Txn
	iterator *badger.Iterator
	tables   map[uint64]bool
}

// newPin takes a pin of the tables that exist before and after its iterator is made.
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

// release lets the tables go, while the database is open.
func (p *pin) release() {
	p.iterator.Close()
	p.txn.Discard()
}

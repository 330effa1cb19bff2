package table

import (
	"reflect"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/ristretto/v2/z"
)

// Badger 4.9.6 keeps the memory of eight builders of tables for the next builders. The memory of a builder grows, and never
// shrinks: an import of 200,000 keys held 500 MiB in builders. So releaseAllocators releases the memory of the builders
// that have ended. Badger logs each table that a compaction has built: then badgerLog.Debugf calls releaseAllocators.

// allocatorPool returns the pool with the memory of the builders that have ended, nil if Badger has no such pool.
func allocatorPool(db *badger.DB) *z.AllocatorPool {
	field := reflect.ValueOf(db).Elem().FieldByName("allocPool")
	if !field.IsValid() || field.Type() != reflect.TypeFor[*z.AllocatorPool]() {
		return nil
	}
	return (*z.AllocatorPool)(field.UnsafePointer())
}

// smallAllocator is the size of the allocator that an empty pool makes, in bytes.
const smallAllocator = 512

// releaseAllocators releases the memory of the builders that have ended. It is safe for concurrent use. db is nil while
// the database is being opened.
func releaseAllocators(db *badger.DB) {
	if db == nil {
		return
	}
	p := allocatorPool(db)
	for isSmall := p == nil; !isSmall; {
		a := p.Get(smallAllocator, "")
		isSmall = a.Allocated() == smallAllocator
		a.Release()
	}
}

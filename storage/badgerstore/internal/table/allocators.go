package table

import (
	"reflect"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/ristretto/v2/z"
)

// Badger 4.9.6 keeps the memory of eight builders of tables for the next builders, and releases one of them every 2 s while
// no table is built. This memory never shrinks: an import of 200,000 keys held 500 MiB in eight builders. Badger logs each
// table that a compaction has built: then badgerLog.Debugf calls releaseAllocators. It leaves keptAllocators builders of at
// most maxPooled bytes: after a checkpoint of a million counters, Badger builds about 100 tables, and new memory for each
// would be 1.2 GiB of garbage. With eight, the peak of BenchmarkMemory of bench/store is 1020 MiB, with four 880 MiB, and
// without any 860 MiB.

// allocatorPool returns the pool with the memory of the builders that have ended, nil if Badger has no such pool.
func allocatorPool(db *badger.DB) *z.AllocatorPool {
	field := reflect.ValueOf(db).Elem().FieldByName("allocPool")
	if !field.IsValid() || field.Type() != reflect.TypeFor[*z.AllocatorPool]() {
		return nil
	}
	return (*z.AllocatorPool)(field.UnsafePointer())
}

const (
	smallAllocator = 512      // bytes of the allocator that an empty pool makes
	keptAllocators = 4        // that stay in the pool
	maxPooled      = 16 << 20 // bytes of the largest one; most builders use 12 MiB
)

// releaseAllocators releases all allocators in the pool but keptAllocators of at most maxPooled bytes. It is safe for concurrent
// use. db is nil while the database is being opened.
func releaseAllocators(db *badger.DB) {
	if db == nil {
		return
	}
	p := allocatorPool(db)
	if p == nil {
		return
	}
	var kept []*z.Allocator
	for {
		a := p.Get(smallAllocator, "")
		size := a.Allocated()
		if size > smallAllocator && size <= maxPooled && len(kept) < keptAllocators {
			kept = append(kept, a)
			continue
		}
		a.Release()
		if size == smallAllocator {
			break
		}
	}
	for _, a := range kept {
		p.Return(a)
	}
}

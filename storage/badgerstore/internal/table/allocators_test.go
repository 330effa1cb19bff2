package table

import (
	"testing"

	"github.com/dgraph-io/ristretto/v2/z"
)

// TestAllocatorsAreReleased: the memory of a builder that has ended is released. A failure means that this version of
// Badger keeps the memory in another way, or that compactions no longer log their tables.
func TestAllocatorsAreReleased(t *testing.T) {
	db := openFilled(t)
	pool := allocatorPool(db.DB)
	if pool == nil {
		t.Fatal("Badger has no pool of allocators")
	}
	for range 3 {
		pool.Return(z.NewAllocator(1<<20, "ended"))
	}
	db.log().Debugf("[%d] LOG Compact. Added %d keys. Skipped %d keys. Iteration took: %v", 1, uint64(0), uint64(0), 0)
	if a := pool.Get(smallAllocator, ""); a.Allocated() != smallAllocator {
		t.Errorf("the pool has an allocator with %d bytes", a.Allocated())
	}
}

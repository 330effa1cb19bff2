package table

import (
	"testing"

	"github.com/dgraph-io/ristretto/v2/z"
)

// TestAllocatorsAreReleased: of the allocators of finished builders, a few small ones stay for the next builders.
// A failure means that this version of Badger keeps the memory in another way, or that compactions no longer log their
// tables.
func TestAllocatorsAreReleased(t *testing.T) {
	db := openFilled(t)
	pool := allocatorPool(db.DB)
	if pool == nil {
		t.Fatal("Badger has no pool of allocators")
	}
	for range keptAllocators - 1 {
		pool.Return(z.NewAllocator(1<<20, "ended"))
	}
	for _, size := range []int{2 * maxPooled, 2 << 20, 3 << 20} {
		pool.Return(z.NewAllocator(size, "ended"))
	}
	db.log().Debugf("[%d] LOG Compact. Added %d keys. Skipped %d keys. Iteration took: %v", 1, uint64(0), uint64(0), 0)
	for _, want := range []uint64{1 << 20, 1 << 20, 1 << 20, 2 << 20, smallAllocator} {
		if got := pool.Get(smallAllocator, "").Allocated(); got != want {
			t.Errorf("an allocator of the pool: got %d bytes, want %d", got, want)
		}
	}
}

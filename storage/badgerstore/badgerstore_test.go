package badgerstore

import (
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/storetest"
)

// mustOpen opens a store that the test closes.
func mustOpen(t testing.TB, dir string, o Options) *Store {
	t.Helper()
	s, err := Open(dir, o)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return s
}

// openIn opens a store. The cleanup of the test closes the store.
func openIn(t testing.TB, dir string, o Options) *Store {
	t.Helper()
	s := mustOpen(t, dir, o)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// TestStore: the store keeps every promise of core.Store with durability process.
func TestStore(t *testing.T) {
	t.Parallel()
	runStoretest(t, Process)
}

// TestStorePower: the store keeps every promise of core.Store with durability power.
func TestStorePower(t *testing.T) {
	t.Parallel()
	runStoretest(t, Power)
}

func runStoretest(t *testing.T, d Durability) {
	storetest.Run(t, func(t *testing.T) storetest.Opened {
		dir := t.TempDir()
		return storetest.Opened{
			Store:  mustOpen(t, dir, Options{Durability: d}),
			Reopen: func(t testing.TB) core.Store { return mustOpen(t, dir, Options{Durability: d}) },
		}
	})
}

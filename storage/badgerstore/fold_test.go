package badgerstore

import "testing"

// TestFoldBesideEviction: a counter that leaves the memory while its page is written,
// and comes back and counts as often as it had before, is not taken for folded: what it
// has counted would be lost when it leaves again.
func TestFoldBesideEviction(t *testing.T) {
	var h hook
	s := openAlone(t, t.TempDir(), Options{step: h.step})
	known(t, s, "key")
	of := keyRef(t, s, "key")
	consume(t, s, request("key", 1, 10, noon))
	h.once(stepPages, func() {
		evict(t, s, of)
		consume(t, s, request("key", 1, 10, noon))
	})
	fold(t, s)
	evict(t, s, of)
	wantUsed(t, s, ofKey("key"), 2)
	consume(t, s, request("key", 1, 10, noon))
	wantUsed(t, s, ofKey("key"), 3)
}

// fold folds the ledger.
func fold(t testing.TB, s *Store) {
	t.Helper()
	if err := s.fold(); err != nil {
		t.Fatalf("fold: %v", err)
	}
}

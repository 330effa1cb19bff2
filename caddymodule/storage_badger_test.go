package caddymodule

import (
	"log/slog"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore"
)

// openStore opens a store until the test ends.
func openStore(t *testing.T, b *BadgerStore) core.Store {
	t.Helper()
	s, err := b.Open(slog.New(slog.DiscardHandler), service.Tunables{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// A reload applies another max_history to the open store. Otherwise only a restart could relieve a full
// disk.
func TestMaxHistoryIsTuned(t *testing.T) {
	b := &BadgerStore{Dir: t.TempDir(), MaxHistory: 5 << 30}
	s := openStore(t, b)
	most := func() int64 { return s.(*badgerstore.Store).Stats().MaxHistory }
	if got := most(); got != 5<<30 {
		t.Errorf("opened: got %d, want 5 GiB", got)
	}
	b.MaxHistory = 1 << 20
	b.Tune(s, service.Tunables{})
	if got := most(); got != 1<<20 {
		t.Errorf("tuned: got %d, want 1 MiB", got)
	}
	b.MaxHistory = 0
	b.Tune(s, service.Tunables{})
	if got := most(); got <= 1<<20 {
		t.Errorf("by default: got %d, want half of the disk", got)
	}
}

// A reload applies another min_free to the open store at once.
func TestMinFreeIsTuned(t *testing.T) {
	b := &BadgerStore{Dir: t.TempDir(), MinFree: 64 << 20}
	s := openStore(t, b)
	for _, want := range []int64{64 << 20, 32 << 20, 48 << 20} {
		b.MinFree = want
		b.Tune(s, service.Tunables{})
		if got := s.(*badgerstore.Store).Stats().MinFree; got != want {
			t.Errorf("min_free: got %d, want %d", got, want)
		}
	}
}

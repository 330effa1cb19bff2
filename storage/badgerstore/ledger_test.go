package badgerstore

import "testing"

// gatedDisk is the disk of the system, with something that happens before a file is
// synced.
type gatedDisk struct {
	systemDisk
	beforeSync func(path string)
}

func (d *gatedDisk) open(path string) (file, error) {
	f, err := d.systemDisk.open(path)
	if err != nil {
		return nil, err
	}
	return gatedFile{f, func() { d.beforeSync(path) }}, nil
}

type gatedFile struct {
	file
	beforeSync func()
}

func (f gatedFile) sync() error {
	f.beforeSync()
	return f.file.sync()
}

// TestSyncBesideRemoval: a segment that is removed while the ledger is synced is no
// fault: the store would take no more writes.
func TestSyncBesideRemoval(t *testing.T) {
	d := &gatedDisk{beforeSync: func(string) {}}
	o := smallSegments
	o.disk = d
	s := openAlone(t, t.TempDir(), o)
	known(t, s, "key")
	consumeUntil(t, s, 2)
	first := s.ledger.list[0]
	removed := false
	d.beforeSync = func(path string) {
		if path == first.path && !removed {
			removed = true
			if err := s.ledger.remove(first); err != nil {
				t.Errorf("remove: %v", err)
			}
		}
	}
	for range 2 {
		consume(t, s, request("key", 1, endless, noon))
		if err := s.ledger.sync(); err != nil {
			t.Errorf("sync: %v", err)
		}
	}
	if !removed {
		t.Error("the segment was not removed while it was synced")
	}
	if got, want := s.ledger.durable.Load(), s.ledger.position(); got != want {
		t.Errorf("durable: got %d, want %d", got, want)
	}
}

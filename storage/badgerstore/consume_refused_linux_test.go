package badgerstore

import (
	"errors"
	"syscall"
	"testing"
)

// descriptors returns a function that takes all file descriptors from the process, and a function that gives them back.
// The cleanup of the test gives them back, too.
func descriptors(t *testing.T) (take, give func()) {
	t.Helper()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	set := func(cur uint64) {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: cur, Max: limit.Max}); err != nil {
			t.Error(err)
		}
	}
	give = func() { set(limit.Cur) }
	t.Cleanup(give)
	return func() { set(0) }, give
}

// TestNoDescriptors: the process can open no file. The store refuses requests when the segment ends, or when a resource is changed,
// because Badger ends the process when it cannot begin a memtable. When descriptors are free, requests are counted again. A
// failure means that a moment without descriptors needs a restart.
func TestNoDescriptors(t *testing.T) {
	s := openAlone(t, t.TempDir(), Options{Logger: quiet.Logger, segmentSize: 1 << 10})
	known(t, s, "key")
	consume(t, s, request("key", 1, endless, noon))
	take, give := descriptors(t)
	answered, before := int64(1), len(s.events.Segments())
	for _, fail := range []func() error{
		func() error {
			for {
				if _, err := s.Consume(t.Context(), request("key", 1, endless, noon)); err != nil {
					return err
				}
				if answered++; len(s.events.Segments()) > before {
					t.Fatal("segments begin although no file can be opened")
				}
			}
		},
		func() error { return s.Update(t.Context(), acct, withKeys(1, 1)) },
	} {
		take()
		if err := fail(); !isUnavailable(err) || !errors.Is(err, syscall.EMFILE) {
			t.Fatalf("got error %v, want %v", err, syscall.EMFILE)
		}
		if g := s.events.Segments()[before-1]; g.End-g.Base < 1<<10 {
			t.Errorf("requests are refused after %d bytes of a segment, want 1024", g.End-g.Base)
		}
		give()
		heal(t, s)
		consume(t, s, request("key", 1, endless, noon))
		answered++
		wantUsed(t, s, ofKey("key"), answered)
	}
}

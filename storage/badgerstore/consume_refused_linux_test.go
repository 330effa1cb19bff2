package badgerstore

import (
	"errors"
	"syscall"
	"testing"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
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

// TestNoDescriptors: the process can open no file. The store refuses requests when the segment ends. It refuses changes
// of resources at once, because Badger ends the process when it cannot begin a
// memtable. When descriptors are free, requests are counted again. A failure means that a moment without descriptors
// needs a restart.
func TestNoDescriptors(t *testing.T) {
	s := openAlone(t, t.TempDir(), Options{Logger: quiet.Logger, segmentSize: 1 << 10})
	known(t, s, "key")
	consume(t, s, request("key", 1, endless, noon))
	take, give := descriptors(t)
	take()
	if err := s.Update(t.Context(), acct, withKeys(1, 1)); !isUnavailable(err) || !errors.Is(err, eventlog.ErrTemporary) {
		t.Errorf("Update: got error %v, want a temporary error", err)
	}
	answered, refused, before := int64(1), int64(0), len(s.events.Segments())
	for ; refused == 0; answered++ {
		if _, err := s.Consume(t.Context(), request("key", 1, endless, noon)); err != nil {
			if !isUnavailable(err) || !errors.Is(err, syscall.EMFILE) || !errors.Is(err, eventlog.ErrTemporary) {
				t.Fatalf("Consume: got error %v, want a temporary error", err)
			}
			refused++
			break
		}
		if len(s.events.Segments()) > before {
			t.Fatal("segments begin although no file can be opened")
		}
	}
	if g := s.events.Segments()[before-1]; g.End-g.Base < 1<<10 {
		t.Errorf("requests are refused after %d bytes of a segment, want 1024", g.End-g.Base)
	}
	give()
	waitUntil(t, "requests are counted again", func() bool {
		_, err := s.Consume(t.Context(), request("key", 1, endless, noon))
		return err == nil
	})
	wantUsed(t, s, ofKey("key"), answered+refused+1) // the event log has written the refused request later
}

// TestDescriptorsLogged: the store logs one line when a change of resources finds no descriptor, and one line when
// descriptors are free again, also without another change. A failure means that the log does not show the end.
func TestDescriptorsLogged(t *testing.T) {
	var logged logLines
	s := openAlone(t, t.TempDir(), Options{Logger: logged.logger()})
	known(t, s, "key")
	take, give := descriptors(t)
	take()
	for range 3 {
		if err := s.Update(t.Context(), acct, withKeys(1, 1)); !errors.Is(err, syscall.EMFILE) {
			t.Errorf("Update: got error %v, want %v", err, syscall.EMFILE)
		}
		s.checkDir()
	}
	give()
	for range 3 {
		s.checkDir()
	}
	if logged.lines("level=ERROR") != 1 || logged.lines("level=WARN") != 1 || logged.lines("level=") != 2 {
		t.Errorf("logged:\n%s\nwant one line for each change", logged.text.String())
	}
}

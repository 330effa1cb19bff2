package badgerstore

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/limitkeeper/limitkeeper/storage/eventlog"
)

// sizeOfLast returns the size of the last segment in the directory of a store.
func sizeOfLast(t *testing.T, dir string) int64 {
	t.Helper()
	files := segmentFiles(t, dir)
	info, err := os.Stat(files[len(files)-1])
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// usedOfLast returns the offset of the end of the events in the last segment.
func usedOfLast(s *Store) int64 {
	list := s.events.Segments()
	return segmentData + s.events.Written() - list[len(list)-1].Base
}

// powerLogged returns options with durability power, and the buffer that its logger writes to.
func powerLogged() (Options, *bytes.Buffer) {
	o, log := quiet, new(bytes.Buffer)
	o.Logger, o.Durability = slog.New(slog.NewTextHandler(log, nil)), Power
	return o, log
}

// withOneRequest opens a store in which one request was counted.
func withOneRequest(t *testing.T, dir string, o Options) *Store {
	t.Helper()
	s := openAlone(t, dir, o)
	known(t, s, "key")
	consume(t, s, request("key", 1, endless, noon))
	return s
}

// TestPreallocatedSpace: with durability power, the event log preallocates space with zeros. The next start does not
// take this space for a torn write, and uses it. With durability process, nothing is preallocated.
func TestPreallocatedSpace(t *testing.T) {
	dir := t.TempDir()
	options, log := powerLogged()
	s := withOneRequest(t, dir, options)
	size := sizeOfLast(t, dir)
	if room := size - usedOfLast(s); room <= 0 || room > defaultAhead {
		t.Fatalf("after the first request: got %d preallocated bytes, want more than 0 and at most %d", room, defaultAhead)
	}
	for want := int64(2); want < 5; want++ {
		abandon(t, s)
		s = openAlone(t, dir, options)
		consume(t, s, request("key", 1, endless, noon))
		wantUsed(t, s, ofKey("key"), want)
		if got := sizeOfLast(t, dir); got != size {
			t.Fatalf("opened again: the file has %d bytes, want %d as before", got, size)
		}
	}
	if log.Len() > 0 {
		t.Errorf("logged: got %q, want nothing", log)
	}
	s.SetDurability(Process) // fills the preallocated space faster
	for s.events.Written() < defaultAhead-1000 {
		consume(t, s, request("key", 1, endless, noon))
	}
	s.SetDurability(Power)
	for s.events.Written() < defaultAhead+1000 {
		consume(t, s, request("key", 1, endless, noon))
	}
	if got := sizeOfLast(t, dir); got <= size || got > size+defaultAhead+1000 {
		t.Errorf("after the preallocated space is used: the file has %d bytes, want up to %d more than %d", got, defaultAhead, size)
	}
	abandon(t, s)

	options.Durability = Process
	dir = t.TempDir()
	s = withOneRequest(t, dir, options)
	if got, want := sizeOfLast(t, dir), usedOfLast(s); got != want {
		t.Errorf("process: the file has %d bytes, want %d", got, want)
	}
	abandon(t, s)
}

// TestTornWriteInPreallocatedSpace: after a power cut, or a kill, a torn write with preallocated space after it is cut off
// and logged.
func TestTornWriteInPreallocatedSpace(t *testing.T) {
	for name, boot := range map[string]uint64{"kill": 1, "power cut": 2} {
		t.Run(name, func(t *testing.T) { testTornWriteInPreallocatedSpace(t, boot) })
	}
}

func testTornWriteInPreallocatedSpace(t *testing.T, boot uint64) {
	dir := t.TempDir()
	options, log := powerLogged()
	options.boot = 1
	s := withOneRequest(t, dir, options)
	whole := usedOfLast(s)
	f, err := os.OpenFile(segmentFiles(t, dir)[0], os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	status := make([]byte, segmentData)
	if _, err := f.ReadAt(status, 0); err != nil {
		t.Fatal(err)
	}
	consume(t, s, request("key", 1, endless, noon))
	abandon(t, s)
	_, err = f.WriteAt(make([]byte, 20), whole) // the start of the second request did not reach the disk
	_, err2 := f.WriteAt(status, 0)             // the old status: the second request was not answered
	if err := firstOf(err, err2, f.Close()); err != nil {
		t.Fatal(err)
	}

	options.boot = boot
	s = openAlone(t, dir, options)
	if n := bytes.Count(log.Bytes(), []byte("torn write")); n != 1 {
		t.Errorf("logged: got %q, want once that the event log ends with a torn write", log)
	}
	if got := sizeOfLast(t, dir); got != whole {
		t.Errorf("the file has %d bytes, want %d", got, whole)
	}
	wantUsed(t, s, ofKey("key"), 1)
	consume(t, s, request("key", 1, endless, noon))
	abandon(t, s)
	s = openAlone(t, dir, options)
	wantUsed(t, s, ofKey("key"), 2)
	abandon(t, s)
}

// TestTornWriteBehindDatabase: after a kill, the end of the event log that was written after the last sync is lost, and the database
// has its events. The next start cuts off a torn write, and rebuilds the database. A failure means that counters have requests
// that no history has, or that requests which were synced are lost.
func TestTornWriteBehindDatabase(t *testing.T) {
	for name, damage := range map[string]func(b []byte, at int64) []byte{
		"flip":                   func(b []byte, at int64) []byte { b[at+blockOverhead] ^= 1; return b },
		"cut within a block":     func(b []byte, at int64) []byte { return b[:at+blockOverhead] },
		"cut between two blocks": func(b []byte, at int64) []byte { return b[:at] }, // no torn write is left
	} {
		t.Run(name, func(t *testing.T) {
			var h hook
			var log bytes.Buffer
			o := damagedOptions
			o.failpoint = h.step
			s := openAlone(t, t.TempDir(), o)
			known(t, s, "key")
			const kept = 3
			for range kept {
				consume(t, s, request("key", 1, endless, noon))
			}
			syncLog(t, s)
			at := usedOfLast(s)
			for range 3 {
				consume(t, s, request("key", 1, endless, noon))
			}
			dir := t.TempDir()
			h.once(failPagesWritten, func() { copyKilled(t, dir, s.dir) })
			writeCheckpoint(t, s)
			damageFile(t, segmentFiles(t, dir)[0], func(b []byte) []byte { return damage(b, at) })

			o = damagedOptions
			o.Logger = slog.New(slog.NewTextHandler(&log, nil))
			s = openAlone(t, dir, o)
			torn := map[bool]int{true: 0, false: 1}[name == "cut between two blocks"]
			if n := strings.Count(log.String(), "torn write"); n != torn {
				t.Errorf("logged: got %q, want %d times that the event log ends with a torn write", &log, torn)
			}
			if n := strings.Count(log.String(), "the database is rebuilt\""); n != 1 {
				t.Errorf("logged: got %q, want once that the database is rebuilt", &log)
			}
			wantUsed(t, s, ofKey("key"), kept)
			consume(t, s, request("key", 1, endless, noon))
			if got := historyOf(t, s, ofKey("key")); len(got) != kept+1 {
				t.Errorf("history: got %d entries, want %d", len(got), kept+1)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if got := checkDamages(t, dir); len(got) > 0 {
				t.Errorf("check: %q", got)
			}
		})
	}
}

// TestPreallocationWithinSegment: each segment ends where the next one begins, with and without preallocation.
func TestPreallocationWithinSegment(t *testing.T) {
	options := Options{Logger: quiet.Logger, segmentSize: 1 << 10, ahead: 1 << 10, Durability: Power}
	dir := t.TempDir()
	s := openAlone(t, dir, options)
	known(t, s, "key")
	n := consumeUntil(t, s, 3)
	s.SetDurability(Process)
	n += consumeUntil(t, s, 5)
	s.SetDurability(Power)
	n += consumeUntil(t, s, 7)
	abandon(t, s)
	s = openAlone(t, dir, options)
	wantUsed(t, s, ofKey("key"), n)
	if got := allowedIn(t, s, ofKey("key")); got != n {
		t.Errorf("history: got %d entries, want %d", got, n)
	}
	list := s.events.Segments()
	for i, g := range list[:len(list)-1] {
		if next := list[i+1].Base; g.End != next {
			t.Errorf("segment %d: got its end at %d, want %d where the next begins", i, g.End, next)
		}
	}
	abandon(t, s)
}

// TestNoSpaceToPreallocate: when preallocation fails, requests are still counted, and survive a kill.
func TestNoSpaceToPreallocate(t *testing.T) {
	dir, options := t.TempDir(), quiet
	options.Durability = Power
	options.fs = &hookedFS{FS: eventlog.OS, before: func(op fsOp) error {
		if op.kind == "write" && allZero(op.data) {
			return syscall.ENOSPC
		}
		return nil
	}}
	s := withOneRequest(t, dir, options)
	consume(t, s, request("key", 1, endless, noon))
	if got, want := sizeOfLast(t, dir), usedOfLast(s); got != want {
		t.Errorf("the file has %d bytes, want %d", got, want)
	}
	abandon(t, s)
	s = openAlone(t, dir, options)
	wantUsed(t, s, ofKey("key"), 2)
	abandon(t, s)
}

// TestZeroedEventsInCheckpoint: zeros in place of events before the mark are damage, and not preallocated space.
func TestZeroedEventsInCheckpoint(t *testing.T) {
	dir := t.TempDir()
	options, _ := powerLogged()
	s := withOneRequest(t, dir, options)
	begin := usedOfLast(s)
	consume(t, s, request("key", 1, endless, noon))
	end := usedOfLast(s)
	writeCheckpoint(t, s)
	abandon(t, s)
	file := segmentFiles(t, dir)[0]
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	clear(b[begin:end])
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err = open(dir, options); err == nil {
		abandon(t, s)
	}
	if !errors.Is(err, eventlog.ErrDamaged) || !strings.Contains(err.Error(), filepath.Base(file)) {
		t.Errorf("open with zeros before the mark: got error %v, want an error that names the file", err)
	}
}

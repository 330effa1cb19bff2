package badgerstore

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/eventlog"
)

// countEachSecond counts 1,000 requests, one in each second.
func countEachSecond(t *testing.T, s *Store) {
	t.Helper()
	for i := range 1000 {
		consume(t, s, request("key", 1, endless, noon.Add(time.Duration(i)*time.Second)))
	}
}

// TestRepairForeignSegment: a file in the middle of a whole event log, which is no segment or one of another log, is set aside, and nothing is lost.
func TestRepairForeignSegment(t *testing.T) {
	const base = 5000
	name := fmt.Sprintf("%016x.seg", base)
	for _, foreign := range []bool{false, true} {
		t.Run(fmt.Sprint("of another log: ", foreign), func(t *testing.T) {
			o := Options{Logger: slog.New(slog.DiscardHandler)}
			dir := t.TempDir()
			s := openAlone(t, dir, o)
			known(t, s, "key")
			countEachSecond(t, s)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			content := make([]byte, 5000)
			if foreign {
				other := eventlog.Options{Dir: t.TempDir()}
				if _, err := eventlog.Cut(other, eventlog.Run{From: base, To: base}); err != nil {
					t.Fatal(err)
				}
				var err error
				if content, err = os.ReadFile(filepath.Join(other.Dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(dir, eventLogDir, name), content, 0o600); err != nil {
				t.Fatal(err)
			}
			for i := range 2 {
				names, err := Repair(dir, func([]string) bool { return true })
				if err != nil || len(names) != 1-i {
					t.Errorf("repair %d: got %q, %v, want %d files set aside", i+1, names, err, 1-i)
				}
			}
			s = openAlone(t, dir, o)
			wantUsed(t, s, ofKey("key"), 1000)
			if n := allowedIn(t, s, ofKey("key")); n != 1000 {
				t.Errorf("history: got %d entries, want 1000", n)
			}
		})
	}
}

// TestRepairAfterScrub: a scrub finds damage of the event log, behind the newest image and before the last checkpoint. The database has every count, so a
// repair costs history only.
func TestRepairAfterScrub(t *testing.T) {
	o := Options{segmentSize: 16 << 10, Logger: slog.New(slog.DiscardHandler)}
	noPause := func(int) error { return nil }
	dir := t.TempDir()
	s := openAlone(t, dir, o)
	known(t, s, "key")
	writeCheckpoint(t, s)
	if err := s.writeImage(noPause); err != nil {
		t.Fatal(err)
	}
	countEachSecond(t, s)
	writeCheckpoint(t, s)
	segment := filepath.Join(dir, eventLogDir, fmt.Sprintf("%016x.seg", s.events.Segments()[1].Base))
	b, err := os.ReadFile(segment)
	if err != nil {
		t.Fatal(err)
	}
	b[6000] ^= 1
	if err := os.WriteFile(segment, b, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = s.scrub(noPause)
	if err = s.failOnDamage(err); !isDamage(err) {
		t.Fatalf("scrub: got %v, want damage", err)
	}
	if err := s.Close(); err == nil {
		t.Error("Close: got no error, want the damage")
	}
	if _, err := Repair(dir, func([]string) bool { return true }); err != nil {
		t.Fatal(err)
	}
	if used := counterOf(t, openAlone(t, dir, o), ofKey("key")).Requests[core.Month]; used != 1000 {
		t.Errorf("got %d used, want 1000", used)
	}
}

package badgerstore

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// TestScrub: a scrub reads all files. When a table or a segment is damaged while the store is open, the scrub finds the
// damage, and the store refuses all calls from then on, also the health check.
func TestScrub(t *testing.T) {
	for _, kind := range []string{filepath.Join(databaseDir, "*.sst"), filepath.Join(eventLogDir, "*"+segmentSuffix)} {
		t.Run(kind, func(t *testing.T) {
			dir := t.TempDir()
			for range 2 { // the first stop makes a table
				s := openAlone(t, dir, smallSegments)
				known(t, s, "key")
				for range 30 {
					consume(t, s, request("key", 1, endless, noon))
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
			s := openAlone(t, dir, smallSegments)
			if n, err := s.scrub(atOnce); err != nil || n < s.historyBytes()/2 || s.Stats().VerifiedAt == 0 {
				t.Fatalf("scrub: got %d bytes, %v", n, err)
			}
			files, err := filepath.Glob(filepath.Join(dir, kind))
			if err != nil || len(files) < 2 {
				t.Fatalf("files: got %v, %v", files, err)
			}
			changeByte(t, files[0], segmentData+100)
			err = s.failOnDamage(scrubNow(s))
			name := filepath.Base(files[0])
			for call, err := range map[string]error{
				"scrub":   err,
				"health":  second(s.AccountByName(t.Context(), "health")),
				"Consume": second(s.Consume(t.Context(), request("key", 1, endless, noon))),
				"Update":  s.Update(t.Context(), acct, func(core.Tx) error { return nil }),
			} {
				if !isUnavailable(err) || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "\n") {
					t.Errorf("%s: got error %v, want one line that names %s", call, err, name)
				}
			}
			if err := s.Close(); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("Close: got error %v, want one that names %s", err, name)
			}
		})
	}
}

// TestVerifiedTime: the time of the last scrub survives a stop and a kill. The next scrub begins a day after it, or 5
// minutes after the start when the day is over. A failure means that a store which restarts every 10 minutes is never
// verified, or that its metric is 0 after each start.
func TestVerifiedTime(t *testing.T) {
	dir := t.TempDir()
	s := openAlone(t, dir, quiet)
	known(t, s, "key")
	if got := s.untilScrub(time.Now()); got != firstScrub {
		t.Errorf("a new store: the first scrub begins after %v, want %v", got, firstScrub)
	}
	mustScrub(t, s)
	at := s.Stats().VerifiedAt
	for _, stop := range []func(){func() { abandon(t, s) }, func() {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}} {
		stop()
		s = openAlone(t, dir, quiet)
		if got := s.Stats().VerifiedAt; got != at {
			t.Errorf("got %d after a start, want %d", got, at)
		}
		consume(t, s, request("key", 1, endless, noon)) // a checkpoint keeps the time
	}
	for _, test := range []struct{ since, want time.Duration }{
		{time.Hour, 23 * time.Hour}, {scrubEvery - time.Minute, firstScrub}, {100 * time.Hour, firstScrub}, {-time.Hour, firstScrub},
	} {
		if got := s.untilScrub(time.Unix(at, 0).Add(test.since)); got != test.want {
			t.Errorf("%v after a scrub: the next one begins after %v, want %v", test.since, got, test.want)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// changeByte changes a byte of a file in place.
func changeByte(t *testing.T, path string, at int64) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1)
	at = min(at, info.Size()-300)
	_, err = file.ReadAt(b, at)
	b[0] ^= 0x10
	_, err2 := file.WriteAt(b, at)
	if err := errors.Join(err, err2, file.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestUnreadableBlock: a block of a table is damaged while the store is open. A read of this block is refused, and never
// returns "not found" or an older value. A second later the store refuses all calls, and names the file.
func TestUnreadableBlock(t *testing.T) {
	dir := t.TempDir()
	ids := numbered("key", 500)
	s := openAlone(t, dir, quiet)
	known(t, s, ids...)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openAlone(t, dir, quiet)
	s.watch()
	files, err := filepath.Glob(filepath.Join(databaseIn(dir), "*.sst"))
	if err != nil || len(files) == 0 { // two, if the store was open for long enough
		t.Fatalf("tables: got %v, %v", files, err)
	}
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		for part := int64(0); part < 8 && info.Size() > 4096; part++ {
			changeByte(t, file, info.Size()*(part+1)/12)
		}
	}
	refused := 0
	for _, id := range ids {
		_, err := s.Key(t.Context(), acct, id)
		if err != nil && !isDamage(err) {
			t.Errorf("Key %s: got error %v, want none or damage", id, err)
		} else if err != nil {
			refused++
		}
	}
	if refused == 0 {
		t.Error("no read was refused: the test proves nothing")
	}
	s.watch()
	err = second(s.AccountByName(t.Context(), acct))
	if err == nil || !slices.ContainsFunc(files, func(f string) bool { return strings.Contains(err.Error(), filepath.Base(f)) }) {
		t.Errorf("AccountByName: got error %v, want one that names one of %v", err, files)
	}
	if err := s.Close(); !isDamage(err) {
		t.Errorf("Close: got error %v, want damage", err)
	}
}

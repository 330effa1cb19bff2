package badgerstore

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/eventlog"
)

// digested are the counters in digestOfCounts.
var digested = []core.CounterID{ofKey("key"), ofKey("other"), ofUser(1), ofUser(2)}

// digestOfCounts returns a digest of the counters in digested and of their histories.
func digestOfCounts(s *Store) (string, error) {
	sum := sha256.New()
	for _, of := range digested {
		cs, err := s.Counters(context.Background(), []core.CounterID{of})
		if err != nil {
			return "", err
		}
		list, total, err := s.History(context.Background(), of, time.Time{}, everything)
		if err != nil {
			return "", err
		}
		_, _ = fmt.Fprintln(sum, of, cs[0].Requests, cs[0].LastUsedAt, cs[0].DeniedOmitted, total)
		for _, e := range list {
			_, _ = fmt.Fprintln(sum, e.At.UTC(), e.KeyID, e.UserID, e.Endpoint, e.Cost, e.Denied)
		}
	}
	return fmt.Sprintf("%x", sum.Sum(nil)[:8]), nil
}

// damageOutcome is the effect of a damaged file.
type damageOutcome string

const (
	healed    damageOutcome = "healed"             // the store opens, and every count and history is as before
	atOpening damageOutcome = "refused at opening" // Open returns one line that names the file
	byReading damageOutcome = "found by reading"   // every count is right; reading a damaged event, and Verify, name the file
	byVerify  damageOutcome = "found by Verify"    // every count and history is as before; Verify names the file
)

// logDamages are the kinds of damage of a segment, with their outcomes: for the last segment, and for an earlier segment
// in the checkpoint. Open reads the last segment completely. Of earlier segments, Open reads the header, and compares the
// length with the header of the next segment.
var logDamages = []struct {
	name         string
	damage       func([]byte) []byte // see damageFile
	last, before damageOutcome
}{
	{"flip in the magic", flip(3), atOpening, atOpening},
	{"flip in the checksum of the header", flip(41), atOpening, atOpening},
	{"flip between header and status", flip(500), healed, healed},
	{"flip in the status", flip(1024), healed, healed},
	{"flip in the copy of the status", flip(2048 + 9), healed, healed},
	{"flip in the first block header", flip(segmentData + 5), atOpening, byVerify},
	{"flip in the middle", flip(-1), atOpening, byReading},
	{"flip in the last byte", flip(-2), atOpening, byVerify}, // the end marker of a block: the records of the block stay valid
	{"cut 7 bytes", func(b []byte) []byte { return b[:len(b)-7] }, atOpening, atOpening},
	{"cut half", func(b []byte) []byte { return b[:len(b)/2] }, atOpening, atOpening},
	{"zero the first 4 KiB", func(b []byte) []byte { clear(b[:4096]); return b }, atOpening, atOpening},
	{"zero 4 KiB", func(b []byte) []byte { clear(b[segmentData : segmentData+4096]); return b }, atOpening, byReading},
	{"zero the last 4 KiB", func(b []byte) []byte { clear(b[len(b)-4096:]); return b }, atOpening, byReading},
	{"empty", func([]byte) []byte { return []byte{} }, atOpening, atOpening},
	{"delete", deleted, atOpening, atOpening},
}

// deleted is the damage of a deleted file.
func deleted([]byte) []byte { return nil }

// damageFile damages a file, or deletes it when damage returns nil.
func damageFile(t *testing.T, path string, damage func([]byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if b = damage(b); b == nil {
		err = os.Remove(path)
	} else {
		err = os.WriteFile(path, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// flip flips a bit of the byte at an offset. -1 is the byte in the middle, and -2 the last byte.
func flip(at int) func([]byte) []byte {
	return func(b []byte) []byte {
		switch at {
		case -1:
			b[segmentData+(len(b)-segmentData)/2] ^= 0x10
		case -2:
			b[len(b)-1] ^= 0x10
		default:
			b[at] ^= 0x10
		}
		return b
	}
}

// damagedStore is a store with four segments, of which three are in the checkpoint.
type damagedStore struct {
	dir    string
	files  []string // names of the segments
	digest string
	used   []core.Counter
	id     *core.Consumption // the request with a request id; its event is in the second segment
}

var damagedOptions = Options{Logger: quiet.Logger, segmentSize: 12 << 10, memtable: smallMemtable}

// storeToDamage makes a store and stops it: cleanly, or by a kill after all events were synced.
func storeToDamage(t *testing.T, clean bool) (d damagedStore) {
	t.Helper()
	d.dir = t.TempDir()
	s := openAlone(t, d.dir, damagedOptions)
	known(t, s, "key", "other")
	n := 0
	countTo := func(segments int, bytes int64) {
		for {
			list := s.events.Segments()
			if g := append(list, eventlog.Segment{})[max(0, len(list)-1)]; len(list) >= segments && g.End-g.Base > bytes {
				return
			}
			n++
			c := request([]string{"key", "other"}[n%2], int64(n/2%2+1), 200, noon.Add(time.Duration(n)*time.Second))
			c.Entry.Endpoint, c.Shared = fmt.Sprint("/", n), n%3 == 0
			consume(t, s, c)
		}
	}
	countTo(2, 3<<10)
	d.id = request("key", 1, endless, noon)
	d.id.RequestID = "id"
	consume(t, s, d.id)
	countTo(4, 0)
	flushCheckpoint(t, s)
	countTo(4, 10<<10)
	var err error
	if d.digest, err = digestOfCounts(s); err != nil {
		t.Fatal(err)
	}
	if d.used, err = s.Counters(t.Context(), digested); err != nil {
		t.Fatal(err)
	}
	if clean {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	} else {
		if err := s.syncEvents(); err != nil { // as the store does every second
			t.Fatal(err)
		}
		abandon(t, s)
	}
	for _, path := range segmentFiles(t, d.dir) {
		d.files = append(d.files, filepath.Base(path))
	}
	if len(d.files) != 4 {
		t.Fatalf("segments: got %v, want 4", d.files)
	}
	return d
}

// TestDamagedEventLog tests the row of the event log in the table of docs/storage.md. After any damage to the last
// segment, or to a segment in the checkpoint, the store returns no wrong count, counts no request id twice and deletes
// no file.
func TestDamagedEventLog(t *testing.T) {
	for _, clean := range []bool{true, false} {
		d := storeToDamage(t, clean)
		for _, c := range logDamages {
			stop := map[bool]string{true: "clean stop", false: "kill"}[clean]
			t.Run(fmt.Sprintf("%s/last segment/%s", stop, c.name), func(t *testing.T) { d.check(t, d.files[3], c.damage, c.last) })
			t.Run(fmt.Sprintf("%s/checkpointed segment/%s", stop, c.name), func(t *testing.T) { d.check(t, d.files[1], c.damage, c.before) })
		}
	}
}

// check damages a file of a copy of the store and opens it.
func (d *damagedStore) check(t *testing.T, name string, damage func([]byte) []byte, want damageOutcome) {
	dir := copyOf(t, d.dir)
	damageFile(t, filepath.Join(dir, eventLogDir, name), damage)
	files := segmentFiles(t, dir)
	s, err := open(dir, damagedOptions)
	if err == nil {
		defer abandon(t, s)
	}
	if got := segmentFiles(t, dir); len(got) != len(files) {
		t.Errorf("files: got %v, want %v as before", got, files)
	}
	if want == atOpening {
		wantNamed(t, "open", err, name)
		return
	}
	if err != nil {
		t.Fatalf("open: %v, want the outcome %q", err, want)
	}
	used, err := s.Counters(t.Context(), digested)
	for i := range digested {
		if err != nil || !sameCounter(used[i], d.used[i]) {
			t.Fatalf("counter of %v: got %+v, %v, want %+v", digested[i], used, err, d.used[i])
		}
	}
	digest, err := digestOfCounts(s)
	v, idErr := s.Consume(t.Context(), d.id)
	if want != byReading {
		if err := errors.Join(err, idErr); err != nil || digest != d.digest || v.FirstTerms == nil {
			t.Errorf("got the digest %s, the answer %+v, %v, want %s and the first answer", digest, v, err, d.digest)
		}
	} else {
		wantNamed(t, "History", err, name)
		if idErr == nil && v.FirstTerms == nil {
			t.Errorf("the request id was counted again: %+v", v)
		} else if idErr != nil {
			wantNamed(t, "Consume", idErr, name)
		}
	}
	if want == healed {
		return
	}
	r, err := eventlog.Verify(eventlog.Options{Dir: filepath.Join(dir, eventLogDir)}, nil)
	if err != nil || len(r.Damage) != 1 || r.Damage[0].File != name {
		t.Errorf("Verify: got %+v, %v, want the damage of %s", r, err, name)
	}
}

// wantNamed fails unless an error is one line that names a damaged file.
func wantNamed(t *testing.T, call string, err error, name string) {
	t.Helper()
	if !errors.Is(err, eventlog.ErrDamaged) || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "\n") {
		t.Errorf("%s: got error %v, want one line that names %s", call, err, name)
	}
}

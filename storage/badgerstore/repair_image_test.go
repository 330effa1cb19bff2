package badgerstore

import (
	"errors"
	"maps"
	"slices"
	"syscall"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/eventlog"
)

// imagedKill is a store that was killed, with one image. The image has pages of requests after its position.
type imagedKill struct {
	dir     string
	segment string // the path of the last segment
	base    int64  // its first position
	first   int64  // the position of the first request
	hurt    int64  // that of a request of the key a, between the position of the image and the end of its records
	counted map[string]int64
}

// newImagedKill makes segments until there are n, and removes all but the last with removed.
func newImagedKill(t *testing.T, n int, removed bool) imagedKill {
	t.Helper()
	s := openAlone(t, t.TempDir(), damagedOptions)
	known(t, s, "a", "b", "c")
	k := imagedKill{counted: map[string]int64{}, first: s.events.Written()}
	count := func(keys ...string) {
		for _, key := range keys {
			consume(t, s, request(key, int64(key[0]-'a'+1), endless, noon))
			k.counted[key]++
		}
	}
	for count("a", "b"); len(s.events.Segments()) < n; {
		count("a", "b")
	}
	writeCheckpoint(t, s)
	count("a", "c")
	k.hurt = s.events.Written()
	count("a", "a", "a")
	mustImage(t, s)
	count("b", "a", "b", "a")
	segments := s.events.Segments()
	if k.base = segments[len(segments)-1].Base; removed {
		if err := s.events.Remove(k.base); err != nil {
			t.Fatal(err)
		}
	}
	k.kill(t, s)
	return k
}

// kill copies the files of a store as a kill leaves them.
func (k *imagedKill) kill(t *testing.T, s *Store) {
	t.Helper()
	if err := s.syncEvents(); err != nil {
		t.Fatal(err)
	}
	k.dir = killedCopy(t, s.dir)
	files := segmentFiles(t, k.dir)
	k.segment = files[len(files)-1]
}

// damage changes a byte of the record at a position of the last segment.
func (k *imagedKill) damage(t *testing.T, position int64) {
	t.Helper()
	changeByte(t, k.segment, position-k.base+segmentData+30)
}

// wantOpen fails unless the repaired store is whole and counts requests. The usage of each key is at most the number of its counted requests, and that
// of the key b at least the number in the image.
func (k *imagedKill) wantOpen(t *testing.T, least int64) {
	t.Helper()
	if got := checkDamages(t, k.dir); len(got) > 0 {
		t.Errorf("check after the repair: %q", got)
	}
	s := openAlone(t, k.dir, damagedOptions)
	for key, most := range k.counted {
		used := counterOf(t, s, ofKey(key)).Requests[core.Month]
		if used > most || key == "b" && used < least {
			t.Errorf("%s: got %d used, want at most %d, and of b at least %d", key, used, most, least)
		}
		consume(t, s, request(key, int64(key[0]-'a'+1), endless, noon))
		if again := counterOf(t, s, ofKey(key)).Requests[core.Month]; again != used+1 {
			t.Errorf("%s: got %d used after another request, want %d", key, again, used+1)
		}
	}
}

// TestRepairKeepsLastImage: the event log is damaged within what the only image has, and its first segments were removed.
// A repair goes back to the image. A failure means that it goes back to nothing, and removes the image.
func TestRepairKeepsLastImage(t *testing.T) {
	k := newImagedKill(t, 3, true)
	k.damage(t, k.hurt)
	if _, err := Repair(k.dir, consent); err != nil {
		t.Fatal(err)
	}
	k.wantOpen(t, k.counted["b"]-2)
}

// TestRepairBehindAllSegments: the only segment that is left begins behind what the image has. The repaired event log begins at the
// end of what the image has.
func TestRepairBehindAllSegments(t *testing.T) {
	s := openAlone(t, t.TempDir(), damagedOptions)
	k := imagedKill{counted: map[string]int64{}}
	known(t, s, "a", "b")
	consume(t, s, request("b", 2, endless, noon))
	writeCheckpoint(t, s)
	mustImage(t, s)
	for k.counted["b"] = 1; len(s.events.Segments()) < 3; k.counted["a"]++ {
		consume(t, s, request("a", 1, endless, noon))
	}
	k.kill(t, s)
	remove(t, segmentFiles(t, k.dir)[:1])
	if _, err := Repair(k.dir, consent); err != nil {
		t.Fatal(err)
	}
	k.wantOpen(t, 1)
}

// TestRepairBeforeImage: damage before the position of an image costs no count, also in the segment that is being written, and no history
// behind the damage.
func TestRepairBeforeImage(t *testing.T) {
	k := newImagedKill(t, 1, false)
	k.damage(t, k.first)
	if _, err := Repair(k.dir, consent); err != nil {
		t.Fatal(err)
	}
	s := openAlone(t, copyOf(t, k.dir), damagedOptions)
	for key, want := range k.counted {
		if got := counterOf(t, s, ofKey(key)).Requests[core.Month]; got != want {
			t.Errorf("%s: got %d used, want %d", key, got, want)
		}
		if got := int64(len(historyOf(t, s, ofKey(key)))); got < want-1 { // the damaged block has one request
			t.Errorf("%s: got %d entries, want at least %d", key, got, want-1)
		}
	}
	k.wantOpen(t, k.counted["b"])
}

// failingRepair repairs a store while the change of a file of the event log with a number fails, or ends the process.
func (k *imagedKill) failingRepair(number int, killed bool) (plan []string, err error) {
	defer func(fs eventlog.FS) { eventlog.OS = fs }(eventlog.OS)
	defer func() {
		if p := recover(); p != nil {
			err = errKilled
		}
	}()
	eventlog.OS = &hookedFS{FS: eventlog.OS, before: func(op fsOp) error {
		if op.kind == "open" { // also to read
			return nil
		}
		if number--; number != 0 {
			return nil
		}
		if killed {
			panic("killed")
		}
		return syscall.ENOSPC
	}}
	_, err = Repair(k.dir, func(lines []string) bool {
		plan = lines
		return true
	})
	return plan, err
}

var errKilled = errors.New("killed")

// TestRepairInterrupted: a repair that was killed, or failed without room, at any change can be repeated, and the store does not open before
// its last change. A failure means that the second plan trusts the database that the first one has made, which lacks what the first one gave up.
func TestRepairInterrupted(t *testing.T) {
	for _, killed := range []bool{true, false} {
		whole := newImagedKill(t, 1, false)
		whole.damage(t, whole.first)
		whole.damage(t, whole.hurt)
		for number := 1; ; number++ {
			k := whole
			k.dir = copyOf(t, whole.dir)
			before := segmentContents(t, k.dir)
			first, err := k.failingRepair(number, killed)
			if err == nil {
				if number < 8 {
					t.Errorf("got %d changes, want more", number)
				}
				break
			}
			if want := map[bool]error{true: errKilled, false: syscall.ENOSPC}[killed]; !errors.Is(err, want) {
				t.Fatalf("change %d: got error %v, want %v", number, err, want)
			}
			left, done := k, len(checkDamages(t, copyOf(t, k.dir))) == 0
			if left.dir = copyOf(t, k.dir); done {
				left.wantOpen(t, whole.counted["b"]-2)
			} else if _, err := open(left.dir, damagedOptions); !errors.Is(err, eventlog.ErrDamaged) {
				t.Errorf("change %d: open: got error %v, want %v", number, err, eventlog.ErrDamaged)
			}
			unchanged := maps.Equal(segmentContents(t, k.dir), before)
			var second []string
			if _, err := Repair(k.dir, func(lines []string) bool { second = lines; return true }); err != nil {
				t.Fatal(err)
			}
			if unchanged && !done && !slices.Equal(first[:3], second[:3]) {
				t.Errorf("change %d: the plan: got %q, and after the kill %q", number, first, second)
			}
			k.wantOpen(t, whole.counted["b"]-2)
		}
	}
}

package eventlog

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// ending is the end of the process that wrote a log.
type ending string

const (
	closedCleanly ending = "closed"
	killed        ending = "killed"
	killedSynced  ending = "killed, with durability power"
)

// sample is a log of three segments. The second half of the last segment was written after the last
// Sync.
type sample struct {
	fs     *memFS
	o      Options // the options of Open
	w      written
	noted  int64 // the sync position in the status
	synced int64 // the highest sync position in the status and the blocks
	last   int64 // the position of the last record
}

func newSample(t testing.TB, e ending) sample {
	t.Helper()
	s := sample{fs: newMemFS(), w: written{}}
	s.o = small(s.fs)
	s.o.SegmentSize, s.o.Power = 300, e == killedSynced
	s.o.Ahead = 64
	l := mustOpen(t, s.o)
	l.seed = uint32(len(e)) // the same in each run, for the fuzzer
	putUntil(t, l, s.w, 3)
	for range 2 {
		put(t, l, s.w, "synced in the last segment")
	}
	if err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	s.noted = l.Durable()
	for i := range 3 {
		s.last = put(t, l, s.w, "after the last sync "+strings.Repeat("y", 10*i))
	}
	if e == closedCleanly {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		s.noted = l.Durable()
	}
	if s.synced = s.noted; e == killedSynced {
		s.synced = s.last - blockHeader // no later block has a sync offset after the last block
	}
	if e != closedCleanly {
		l.Abandon()
	}
	s.fs = s.fs.clone()
	s.o.FS = s.fs
	return s
}

// files returns the names of the segments, oldest first.
func (s *sample) files() []string { return slices.Sorted(maps.Keys(s.fs.now)) }

// damaged returns a copy with a file changed.
func (s *sample) damaged(name string, change func([]byte) []byte) *memFS {
	fs := s.fs.clone()
	fs.now[name] = &memFile{now: change(fs.now[name].now)}
	return fs
}

// outcome is the result of opening a damaged log.
type outcome string

const (
	healed  outcome = "healed"  // no record is lost
	refused outcome = "refused" // Open or Replay returned an error that names the file
	cut     outcome = "cut"     // a torn write was cut off and reported
)

// checkOutcome opens a log and returns the outcome. It fails if the log returns a record that was not
// written, loses a record without a report, or is changed although it was refused.
func (s *sample) checkOutcome(t *testing.T, label, name string, fs *memFS, synced int64) outcome {
	t.Helper()
	before, torn := fs.clone(), 0
	o := s.o
	o.FS = fs
	o.OnTorn = func(Torn) { torn++ }
	l, err := Open(o)
	var got written
	if err == nil {
		got, err = replayed(l, firstPosition)
		s.checkReads(t, label, l)
		l.Abandon()
	}
	for position, payload := range got {
		if s.w[position] != payload {
			t.Fatalf("%s: got %.20q at %d, want %.20q", label, payload, position, s.w[position])
		}
	}
	o.FS = before
	r, verifyErr := Verify(o, nil)
	if verifyErr != nil {
		t.Fatalf("%s: Verify: %v", label, verifyErr)
	}
	if err != nil {
		if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "\n") {
			t.Fatalf("%s: got error %v, want one line that names %s", label, err, name)
		}
		if len(r.Damage) == 0 || r.Damage[0].Error() != err.Error() {
			t.Fatalf("%s: Verify: got %+v, want %v", label, r, err)
		}
		if l == nil {
			for name, f := range before.now {
				if !bytes.Equal(fs.now[name].now, f.now) {
					t.Fatalf("%s: the refused log was changed: %s", label, name)
				}
			}
		}
		return refused
	}
	if len(r.Damage) > 0 && len(got) < len(s.w) {
		t.Fatalf("%s: Verify: got damage %v, want none", label, r.Damage)
	}
	for position := range s.w {
		if got[position] == "" && position < synced {
			t.Fatalf("%s: the record at %d is lost, but the log was on disk up to %d", label, position, synced)
		}
	}
	switch {
	case len(got) == len(s.w):
		return healed
	case torn == 1:
		return cut
	}
	return "lost"
}

// checkReads fails if Read returns a record that was not written.
func (s *sample) checkReads(t *testing.T, label string, l *Log) {
	t.Helper()
	for position, want := range s.w {
		if b, err := l.Read(position, nil); err == nil && string(b) != want {
			t.Fatalf("%s: Read %d: got %.20q, want %.20q", label, position, b, want)
		}
	}
}

// isSampled reports whether a test changes the byte at an offset: all bytes of blocks, headers and
// statuses, and a sample of the bytes in between.
func isSampled(at int) bool { return at >= dataOffset || at%slotStride < 50 || at%251 == 0 }

// TestFlippedBytes: a log with one flipped byte, anywhere in any file, is healed or refused. Only
// after a kill, and only after the synced position, the byte counts as a torn write, because a power cut
// can cause it.
func TestFlippedBytes(t *testing.T) {
	for _, e := range []ending{closedCleanly, killed, killedSynced} {
		s := newSample(t, e)
		count := map[outcome]int{}
		for _, name := range s.files() {
			for at := range s.fs.now[name].now {
				if !isSampled(at) {
					continue
				}
				fs := s.damaged(name, func(b []byte) []byte { b[at] ^= []byte{1, 0xff}[at%2]; return b })
				got := s.checkOutcome(t, fmt.Sprintf("%s: %s, byte %d flipped", e, name, at), name, fs, s.synced)
				if count[got]++; got == "lost" || got == cut && e == closedCleanly {
					t.Errorf("%s: %s, byte %d flipped: got %s", e, name, at, got)
				}
			}
		}
		t.Log(e, count)
		if count[refused] == 0 || count[healed] == 0 {
			t.Errorf("%s: got %v, want both", e, count)
		}
	}
}

// TestCutFiles: a log with a file that is cut at any byte is refused. In the last file, a cut after
// the last Sync is a torn write, or no damage between two blocks.
func TestCutFiles(t *testing.T) {
	for _, e := range []ending{closedCleanly, killed, killedSynced} {
		s := newSample(t, e)
		count := map[outcome]int{}
		for i, name := range s.files() {
			last := i == len(s.files())-1
			for at := range s.fs.now[name].now {
				if !isSampled(at) {
					continue
				}
				fs := s.damaged(name, func(b []byte) []byte { return b[:at] })
				got := s.checkOutcome(t, fmt.Sprintf("%s: %s cut at %d", e, name, at), name, fs, s.noted)
				if count[got]++; !last && got != refused {
					t.Errorf("%s: %s cut at byte %d: got %s, want %s", e, name, at, got, refused)
				}
			}
		}
		t.Log(e, count)
		if e == closedCleanly && (count["lost"] > 0 || count[cut] > 0) {
			t.Errorf("%s: got %v, want each healed or refused", e, count)
		}
	}
}

// TestZeroedRanges: a log with zeros over data is refused. Zeros after the sync position to the
// end of the file are a torn write.
func TestZeroedRanges(t *testing.T) {
	for _, e := range []ending{closedCleanly, killed, killedSynced} {
		s := newSample(t, e)
		count := map[outcome]int{}
		for i, name := range s.files() {
			size := len(s.fs.now[name].now)
			for _, n := range []int{8, 200, 4096, size} {
				for at := 0; at < size; at += 7 {
					if !isSampled(at) {
						continue
					}
					fs := s.damaged(name, func(b []byte) []byte { clear(b[at:min(at+n, size)]); return b })
					got := s.checkOutcome(t, fmt.Sprintf("%s: %s, %d zeros at %d", e, name, n, at), name, fs, s.noted)
					if count[got]++; got == "lost" && (i < len(s.files())-1 || e == closedCleanly) {
						t.Errorf("%s: %s, %d zeros at %d: got %s", e, name, n, at, got)
					}
				}
			}
		}
		t.Log(e, count)
	}
}

// TestMisplacedFiles: a log with a missing, swapped or copied segment, or a segment of another log,
// is refused. This includes the last segment, because the status of the previous segment shows that
// it exists.
func TestMisplacedFiles(t *testing.T) {
	s := newSample(t, killed)
	other := newSample(t, killedSynced) // with another seed
	files := s.files()
	for name, test := range map[string]struct {
		change func(map[string]*memFile)
		file   int // its index, as the error names it
	}{
		"first missing":  {func(m map[string]*memFile) { delete(m, files[0]) }, 0},
		"middle missing": {func(m map[string]*memFile) { delete(m, files[1]) }, 1},
		"last missing":   {func(m map[string]*memFile) { delete(m, files[2]) }, 2},
		"last empty":     {func(m map[string]*memFile) { m[files[2]] = &memFile{} }, 2},
		"first empty":    {func(m map[string]*memFile) { m[files[0]] = &memFile{} }, 0},
		"swapped":        {func(m map[string]*memFile) { m[files[0]], m[files[1]] = m[files[1]], m[files[0]] }, 0},
		"copied over":    {func(m map[string]*memFile) { m[files[2]] = m[files[1]] }, 2},
		"of another log": {func(m map[string]*memFile) { m[files[1]] = other.fs.now[files[1]] }, 1},
		"last of another": {func(m map[string]*memFile) {
			m[files[2]] = other.fs.now[files[2]]
		}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			fs := s.fs.clone()
			test.change(fs.now)
			if got := s.checkOutcome(t, name, files[test.file], fs, s.synced); got != refused {
				t.Errorf("got %s, want %s", got, refused)
			}
		})
	}
	fs := s.fs.clone()
	fs.now["copy of "+files[1]], fs.now["0.seg"] = fs.now[files[1]], fs.now[files[1]]
	if got := s.checkOutcome(t, "files that are no segments", "", fs, s.synced); got != healed {
		t.Errorf("with other files in the directory: got %s, want %s", got, healed)
	}
}

// TestKnown: a log that ends before Options.Known is damaged, also a log without files.
func TestKnown(t *testing.T) {
	s := newSample(t, killed)
	for name, fs := range map[string]*memFS{
		"cut between two blocks": s.damaged(s.files()[2], func(b []byte) []byte { return b[:len(b)-(7+16+len(s.w[s.last]))] }),
		"without a file":         newMemFS(),
	} {
		o := s.o
		o.FS, o.Known = fs, s.last+1
		if l, err := Open(o); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: got %v, %v, want damage", name, l, err)
		}
		if r, err := Verify(o, nil); err != nil || len(r.Damage) != 1 {
			t.Errorf("%s: Verify: got %+v, %v, want damage", name, r, err)
		}
		o.Known = 0
		mustOpen(t, o).Abandon()
	}
}

// TestDamageNamesTheByte: the error of a damaged block has the offset of the block in its file, where
// an operator looks for the lost records.
func TestDamageNamesTheByte(t *testing.T) {
	s := newSample(t, closedCleanly)
	first := segmentName(1)
	fs := s.damaged(first, func(b []byte) []byte { b[dataOffset+blockHeader+recordHeader] ^= 1; return b })
	o := s.o
	o.FS = fs
	l := mustOpen(t, o)
	_, err := replayed(l, firstPosition)
	var d *DamageError
	if !errors.As(err, &d) || d.File != first || d.Offset != dataOffset {
		t.Errorf("got error %v, want byte %d of %s", err, dataOffset, first)
	}
	_, err = l.Read(firstPosition+blockHeader, nil)
	if !errors.As(err, &d) || d.File != first || d.Offset != dataOffset+blockHeader {
		t.Errorf("Read: got error %v, want byte %d of %s", err, dataOffset+blockHeader, first)
	}
}

// TestBlockInPayload: the bytes of a block in the payload of a torn block, or at another position than
// its own, do not prove that the torn block was on disk.
func TestBlockInPayload(t *testing.T) {
	fs := newMemFS()
	o := small(fs)
	l := mustOpen(t, o)
	w := written{}
	put(t, l, w, "first")
	block := string(fs.now[segmentName(1)].now[dataOffset:]) // its sync offset is its position
	put(t, l, w, block+block)
	l.Abandon()
	file := fs.now[segmentName(1)].now
	file[dataOffset+len(block)+1] ^= 1
	o.OnTorn = func(torn Torn) { o.Known = torn.Offset }
	l = mustOpen(t, o)
	if got, err := replayed(l, firstPosition); err != nil || len(got) != 1 || o.Known != int64(dataOffset+len(block)) {
		t.Errorf("got %d records, %v, cut at %d, want 1", len(got), err, o.Known)
	}
}

// TestVerifyChecksum: Verify finds a block that was replaced by another valid block, by the checksum in
// the header of the next segment.
func TestVerifyChecksum(t *testing.T) {
	s := newSample(t, closedCleanly)
	first := segmentName(1)
	fs := s.damaged(first, func(b []byte) []byte {
		h, _, _ := decodeHeader(b)
		info, _ := decodeBlock(b[dataOffset:], h.seed, 1)
		block := b[dataOffset : dataOffset+info.end-1]
		block[blockHeader+recordHeader] ^= 1
		sealRecord(block[blockHeader:len(block)-1], h.seed, 1+blockHeader)
		sealBlock(block, h.seed, 1, 1, hours{})
		return b
	})
	o := s.o
	o.FS = fs
	if r, err := Verify(o, nil); err != nil || len(r.Damage) != 1 || r.Damage[0].File != first {
		t.Errorf("Verify: got %+v, %v, want that %s is damaged", r, err, first)
	}
}

// TestVerifyChangesNothing: Verify opens files read-only, and does not cut off a torn write.
func TestVerifyChangesNothing(t *testing.T) {
	dir := t.TempDir()
	l := mustOpen(t, Options{Dir: dir})
	put(t, l, written{}, "record")
	l.Abandon()
	path := dir + "/" + segmentName(1)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write([]byte("torn"))
	if err := errors.Join(err, f.Close(), os.Chmod(path, 0o400)); err != nil {
		t.Fatal(err)
	}
	before, _ := os.ReadFile(path)
	r, err := Verify(Options{Dir: dir}, nil)
	after, _ := os.ReadFile(path)
	if err != nil || r.Torn.Bytes != 4 || r.Records != 1 || !bytes.Equal(before, after) {
		t.Errorf("got %+v, %v, want 1 record and 4 bytes torn, and the file as before", r, err)
	}
}

// TestCutAfterKill: a file that is cut off after a kill is damaged, when bytes are lost that were synced. What was written
// since then counts as a torn write, and the blocks before the cut stay. A failure means that synced records are lost with a warning
// only, or that a start is refused after a power cut.
func TestCutAfterKill(t *testing.T) {
	s := newSample(t, killed)
	name := s.files()[2]
	base, _ := baseOf(name)
	synced := int(s.noted - base + dataOffset)
	count := map[outcome]int{}
	for at := range s.fs.now[name].now {
		fs := s.damaged(name, func(b []byte) []byte { return b[:at] })
		got := s.checkOutcome(t, fmt.Sprint("cut at ", at), name, fs, s.noted)
		if count[got]++; (got == refused) != (at < synced) {
			t.Errorf("cut at byte %d, and the bytes before %d were synced: got %s", at, synced, got)
		}
	}
	if count[healed] > 0 || count["lost"] != 3 || count[cut] == 0 { // a cut before one of the three blocks since the sync leaves no trace
		t.Errorf("got %v, want no whole log, and three cuts that leave no trace", count)
	}
}

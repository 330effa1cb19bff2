package eventlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
)

// segment1 returns a segment of format 1, and adds its records to w.
func segment1(base int64, n int, w written) []byte {
	b := binary.BigEndian.AppendUint64([]byte(magic1), uint64(base))
	for i := range n {
		position, payload := base+int64(len(b))-headerSize1, fmt.Sprint("of format 1: ", i)
		w[position] = payload
		frame := append(make([]byte, frameHeader1), payload...)
		le.PutUint32(frame, checksum([]byte(payload), 0, position))
		le.PutUint32(frame[4:], uint32(len(payload)))
		b = append(b, frame...)
	}
	return b
}

// log1 is a log of two segments of format 1.
func log1() (fs *memFS, o Options, w written, names [2]string) {
	fs, w = newMemFS(), written{}
	first := segment1(1, 10, w)
	base := 1 + int64(len(first)) - headerSize1
	names = [2]string{segmentName(1), segmentName(base)}
	fs.now[names[0]] = &memFile{now: first}
	fs.now[names[1]] = &memFile{now: segment1(base, 5, w)}
	o = small(fs)
	return fs, o, w, names
}

// TestFormat1: segments of format 1 are read but never written, and new positions follow theirs.
func TestFormat1(t *testing.T) {
	fs, o, w, names := log1()
	before := fs.clone()
	l := mustOpen(t, o)
	wantAll(t, l, w)
	end := l.Written()
	never := forEver.keep()
	for i := range 2 {
		if list := l.Segments(); list[0].Keep != never || list[1].Keep != never && i == 0 {
			t.Errorf("Segments before SetKeep: got %+v, want these kept for ever", list)
		}
		for _, g := range l.Segments() {
			l.SetKeep(g.Base, Keep{Until: g.Base * 3600, Hard: 7200}) // has no effect on a segment of format 2
		}
		putUntil(t, l, w, 4)
		wantAll(t, l, w)
		list := l.Segments()
		if list[0].Keep != (Keep{3600, 7200}) || list[1].Keep != (Keep{list[1].Base * 3600, 7200}) || list[2].Base != end || list[2].Keep != (Keep{}) {
			t.Errorf("Segments: got %+v", list)
		}
		l.Abandon()
		l = mustOpen(t, o)
	}
	for _, name := range names {
		if string(fs.now[name].now) != string(before.now[name].now) {
			t.Errorf("%s was changed", name)
		}
	}
	if r, err := Verify(o); err != nil || len(r.Damage) > 0 || r.Records != len(w) {
		t.Errorf("Verify: got %+v, %v", r, err)
	}
	fs.now[names[1]].now[headerSize1+frameHeader1] ^= 1
	if r, err := Verify(o); err != nil || len(r.Damage) != 1 || r.Damage[0].File != names[1] {
		t.Errorf("Verify with a flipped bit: got %+v, %v", r, err)
	}
	if err := l.Remove(end); err != nil || len(l.Segments()) != 2 {
		t.Errorf("Remove: got %d segments, %v, want 2", len(l.Segments()), err)
	}
	l.Abandon()
	mustOpen(t, o).Abandon()
}

// TestFormat1Ends: a torn write at the end of format 1 is skipped and reported. Preallocated zeros are
// not reported. Damage before Options.Known is refused.
func TestFormat1Ends(t *testing.T) {
	for name, test := range map[string]struct {
		change func(b []byte) []byte
		known  int64 // before the end
		torn   int
		err    bool
	}{
		"room":         {func(b []byte) []byte { return append(b, make([]byte, 100)...) }, 0, 0, false},
		"torn":         {func(b []byte) []byte { return append(b, "torn"...) }, 0, 1, false},
		"cut":          {func(b []byte) []byte { return b[:len(b)-3] }, 30, 1, false},
		"cut before":   {func(b []byte) []byte { return b[:len(b)-3] }, 1, 0, true},
		"empty":        {func(b []byte) []byte { return nil }, 500, 0, false},
		"empty, known": {func(b []byte) []byte { return nil }, 1, 0, true},
	} {
		fs, o, w, names := log1()
		l := mustOpen(t, o)
		end := l.Written()
		l.Abandon()
		fs.now[names[1]].now = test.change(fs.now[names[1]].now)
		torn := 0
		o.OnTorn = func(Torn) { torn++ }
		if test.known > 0 {
			o.Known = end - test.known
		}
		l, err := Open(o)
		if (err != nil) != test.err || test.err && !errors.Is(err, ErrDamaged) || torn != test.torn {
			t.Errorf("%s: got error %v, %d torn", name, err, torn)
		}
		if err != nil {
			continue
		}
		put(t, l, w, "and on")
		l.Abandon()
		mustOpen(t, o).Abandon()
	}
}

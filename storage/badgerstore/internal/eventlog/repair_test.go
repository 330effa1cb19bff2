package eventlog

import (
	"errors"
	"maps"
	"slices"
	"testing"
)

// cutLog is a damaged log with the expected result of its repair.
type cutLog struct {
	fs     *memFS
	o      Options
	w      written // all records
	needed int64   // for PlanRepair
	used   int64
}

// repair repairs the log. It returns the end of the kept part and the position of new records, and fails without damage.
func (c *cutLog) repair(t *testing.T, fs *memFS) (end, next int64) {
	t.Helper()
	o := c.o
	o.FS = fs
	r, err := PlanRepair(o, c.needed, func([]byte) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	end, next = r.End(), r.Next(c.used)
	records := written{}
	if err := r.Records(func(position int64, payload []byte) error {
		records[position] = string(payload)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for position, want := range c.w {
		b, err := r.Read(position)
		if got, kept := records[position]; kept != (err == nil) || kept && (got != want || string(b) != want) {
			t.Errorf("the kept record at %d: got %q and %q, %v, want %q", position, got, b, err, want)
		}
	}
	if _, err := r.Apply(next); err != nil {
		t.Fatal(err)
	}
	return end, next
}

// check fails unless a repaired log has the records up to end, and new records get positions from next on.
func (c *cutLog) check(t *testing.T, fs *memFS, first, end, next int64) {
	t.Helper()
	o := c.o
	o.FS, o.Known = fs, next
	if r, err := Verify(o); err != nil || len(r.Damage) > 0 {
		t.Fatalf("Verify: got %v, %v", r.Damage, err)
	}
	kept := written{}
	for position, payload := range c.w {
		if position >= first && position < end {
			kept[position] = payload
		}
	}
	l := mustOpen(t, o)
	wantAll(t, l, kept)
	lost := slices.DeleteFunc(slices.Collect(maps.Keys(c.w)), func(position int64) bool { return kept[position] != "" })
	if position := put(t, l, kept, "new"); position < next || next < c.used {
		t.Errorf("a new record is at %d, and Next is %d; want at least %d", position, next, c.used)
	}
	putUntil(t, l, kept, len(l.Segments())+2)
	for _, position := range lost {
		if b, err := l.Read(position, nil); !errors.Is(err, ErrGone) {
			t.Errorf("Read %d: got %q, %v, want %v", position, b, err, ErrGone)
		}
	}
	l.Abandon()
	l = mustOpen(t, o)
	wantAll(t, l, kept)
	l.Abandon()
}

// TestRepairReusesNoPosition: after any repair, new records get positions after all positions used before, also if
// the repair was killed at any moment and repeated. Reads of positions in between return ErrGone.
func TestRepairReusesNoPosition(t *testing.T) {
	for name, damage := range map[string]func(fs *memFS, names []string){
		"flip in a segment after needed":    func(fs *memFS, names []string) { fs.now[names[4]].now[dataOffset+300] ^= 1 },
		"flip in the segment of needed":     func(fs *memFS, names []string) { b := fs.now[names[2]].now; b[len(b)-1] ^= 1 },
		"flip in the last segment":          func(fs *memFS, names []string) { fs.now[names[5]].now[dataOffset+5] ^= 1 },
		"header of the last segment":        func(fs *memFS, names []string) { fs.now[names[5]].now[9] ^= 1 },
		"last segment missing":              func(fs *memFS, names []string) { delete(fs.now, names[5]) },
		"segment after needed missing":      func(fs *memFS, names []string) { delete(fs.now, names[3]) },
		"segment of needed missing":         func(fs *memFS, names []string) { delete(fs.now, names[2]) },
		"first and last segment missing":    func(fs *memFS, names []string) { delete(fs.now, names[0]); delete(fs.now, names[5]) },
		"flip before needed in its segment": func(fs *memFS, names []string) { fs.now[names[2]].now[dataOffset+5] ^= 1 },
		"flips before and after needed": func(fs *memFS, names []string) {
			b := fs.now[names[2]].now
			b[dataOffset+5] ^= 1
			b[len(b)-1] ^= 1
		},
		"everything missing": func(fs *memFS, _ []string) { clear(fs.now) },
	} {
		t.Run(name, func(t *testing.T) {
			fs, o, l, w := segmentsLog(t)
			put(t, l, w, "last")
			list, end := l.Segments(), l.End()
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			c := cutLog{fs: fs, o: o, w: w, used: end}
			for position := range w { // the needed position is after some records of the third segment
				if position > list[2].Base+300 && (c.needed == 0 || position < c.needed) {
					c.needed = position - blockHeader
				}
			}
			damage(fs, slices.Sorted(maps.Keys(fs.now)))
			c.killed(t)
		})
	}
}

// killed repairs and checks the log, and again for a repair that was killed before any of its changes and repeated.
func (c *cutLog) killed(t *testing.T) {
	t.Helper()
	var left []*memFS
	before := c.fs.clone()
	c.fs.at = func(int) { left = append(left, c.fs.clone()) }
	end, next := c.repair(t, c.fs)
	c.fs.at = nil
	o := c.o
	o.FS, o.Known = c.fs, next
	kept := mustOpen(t, o)
	first := kept.Segments()[0].Base
	kept.Abandon()
	c.check(t, c.fs, first, end, next)
	for i, fs := range append(left, before) {
		o.FS = fs
		r, err := Verify(o)
		if err != nil {
			t.Fatal(err)
		}
		again := next
		if len(r.Damage) > 0 {
			_, again = c.repair(t, fs)
		}
		c.check(t, fs, first, end, again)
		if t.Failed() {
			t.Fatalf("killed at change %d of %d", i, len(left))
		}
	}
}

// TestRepairBeforeGap: a second repair, for damage before the gap of the first one, keeps all records after the damage,
// on both sides of the gap, also if the second repair was killed at any moment and repeated.
func TestRepairBeforeGap(t *testing.T) {
	for _, after := range []bool{false, true} {
		fs, o, l, w := segmentsLog(t)
		list := l.Segments()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		c := cutLog{fs: fs, o: o, w: w, needed: list[1].Base, used: list[5].End}
		fs.now[segmentName(list[1].Base)].now[dataOffset+700] ^= 1
		end, next := c.repair(t, fs)
		maps.DeleteFunc(w, func(position int64, _ string) bool { return position >= end })
		l = mustOpen(t, o)
		putUntil(t, l, w, 4)
		c.used = l.End()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if c.needed = end; after {
			c.needed = next
		}
		fs.now[segmentName(list[1].Base)].now[dataOffset+5] ^= 1
		c.killed(t)
	}
}

// TestRepairKeepsFilesSetAside: a second repair of the same segment leaves the file that the first one has set aside as it
// is, and sets the segment aside under another name.
func TestRepairKeepsFilesSetAside(t *testing.T) {
	for name, after := range map[string]bool{"damage before needed": false, "damage after needed": true} {
		fs, o, l, w := segmentsLog(t)
		list := l.Segments()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		c := cutLog{fs: fs, o: o, w: w, needed: list[1].Base, used: list[5].End}
		segment := segmentName(list[1].Base)
		flip := func(at int) string {
			fs.now[segment].now[dataOffset+at] ^= 1
			return string(fs.now[segment].now)
		}
		first := flip(700)
		end, _ := c.repair(t, fs)
		maps.DeleteFunc(w, func(position int64, _ string) bool { return position >= end })
		if !after {
			c.needed = end
		}
		second := flip(300)
		c.repair(t, fs)
		for suffix, want := range map[string]string{".damaged": first, ".damaged-2": second} {
			if f := fs.now[segment+suffix]; f == nil || string(f.now) != want {
				t.Errorf("%s: %s is missing or was changed", name, segment+suffix)
			}
		}
	}
}

// TestGapIsVerified: a log with a gap is damaged when a file next to the gap is truncated or deleted. A second repair
// keeps the records before the gap and after it.
func TestGapIsVerified(t *testing.T) {
	fs, o, l, w := segmentsLog(t)
	list := l.Segments()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	c := cutLog{fs: fs, o: o, w: w, needed: list[1].Base, used: list[5].End}
	fs.now[segmentName(list[3].Base)].now[dataOffset+300] ^= 1
	end, next := c.repair(t, fs)
	l = mustOpen(t, o)
	kept := written{}
	for position, payload := range w {
		if position < end {
			kept[position] = payload
		}
	}
	putUntil(t, l, kept, 8)
	list = l.Segments()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if r, err := Verify(o); err != nil || len(r.Damage) > 0 || r.From != next {
		t.Errorf("Verify: got %+v, %v, want no damage, and %d as the first position after the gap", r, err, next)
	}
	before, after := segmentName(list[3].Base), segmentName(next)
	for name, damage := range map[string]func(fs *memFS){
		"cut before the gap": func(fs *memFS) { b := &fs.now[before].now; *b = (*b)[:len(*b)-1] },
		"deleted before it":  func(fs *memFS) { delete(fs.now, before) },
		"deleted after it":   func(fs *memFS) { delete(fs.now, after) },
		"cut after it":       func(fs *memFS) { b := &fs.now[after].now; *b = (*b)[:len(*b)-1] },
		"all deleted up to it": func(fs *memFS) {
			for _, g := range list[:4] {
				delete(fs.now, segmentName(g.Base))
			}
		},
	} {
		o.FS = fs.clone()
		damage(o.FS.(*memFS))
		if r, err := Verify(o); err != nil || len(r.Damage) == 0 {
			t.Errorf("%s: Verify: got %v, %v, want damage", name, r.Damage, err)
		}
		if _, err := Open(o); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: Open: got error %v, want damage", name, err)
		}
	}
	again := cutLog{fs: fs, o: c.o, w: kept, needed: list[5].Base, used: list[7].End}
	b := fs.now[segmentName(list[7].Base)].now
	b[len(b)-1] ^= 1
	end, next = again.repair(t, fs)
	again.check(t, fs, firstPosition, end, next)
}

package eventlog

import (
	"errors"
	"maps"
	"slices"
	"testing"
)

// damagedLog is a damaged log. A repair keeps a part of it.
type damagedLog struct {
	o    Options // without FS
	w    written // all records
	part Run
}

// verify returns the report of the log in a file system. It fails if Verify changes a file.
func (d *damagedLog) verify(t *testing.T, fs *memFS) (r Report) {
	t.Helper()
	o, before := d.o, fs.clone()
	o.FS = fs
	r, err := Verify(o, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !maps.EqualFunc(fs.now, before.now, func(a, b *memFile) bool { return string(a.now) == string(b.now) }) {
		t.Error("Verify has changed files")
	}
	return r
}

func (d *damagedLog) repair(t *testing.T, fs *memFS) {
	t.Helper()
	o := d.o
	o.FS = fs
	if _, err := Cut(o, d.part); err != nil {
		t.Fatal(err)
	}
}

// check fails unless a repaired log has exactly the records of the part, and new records after it.
func (d *damagedLog) check(t *testing.T, fs *memFS) {
	t.Helper()
	d.o.Known = d.part.To
	if r := d.verify(t, fs); len(r.Damage) > 0 || len(r.Runs) != 1 || r.Runs[0] != d.part || r.End != d.part.To {
		t.Fatalf("Verify: got %+v, want %v", r, d.part)
	}
	o := d.o
	o.FS = fs
	l, all := mustOpen(t, o), maps.Clone(d.w)
	maps.DeleteFunc(all, func(position int64, _ string) bool { return position < d.part.From || position >= d.part.To })
	wantAll(t, l, all)
	for position := range d.w {
		if b, err := l.Read(position, nil); position < d.part.From && !errors.Is(err, ErrGone) {
			t.Errorf("Read %d: got %q, %v, want %v", position, b, err, ErrGone)
		}
	}
	if position := put(t, l, all, "new"); position < d.part.To {
		t.Errorf("a new record is at %d, want at least %d", position, d.part.To)
	}
	putUntil(t, l, all, len(l.Segments())+2)
	l.Abandon()
	l = mustOpen(t, o)
	wantAll(t, l, all)
	if l.From() != d.part.From {
		t.Errorf("From: got %d, want %d", l.From(), d.part.From)
	}
	if list := l.Segments(); len(list) > 3 { // a log whose first segment is kept from the middle on is removed like others
		if err := l.Remove(list[1].Base); err != nil || l.From() != list[1].Base {
			t.Errorf("Remove: got %v, and the first position %d, want %d", err, l.From(), list[1].Base)
		}
	}
	l.Abandon()
	mustOpen(t, o).Abandon()
}

// killed repairs and checks the log, and again for a repair that was killed before any of its changes and repeated.
func (d *damagedLog) killed(t *testing.T, damaged *memFS) {
	t.Helper()
	known := d.o.Known
	fs, left := damaged.clone(), []*memFS{damaged.clone()}
	fs.at = func(int) { left = append(left, fs.clone()) }
	d.repair(t, fs)
	fs.at = nil
	for name, f := range damaged.now {
		if (fs.now[name] == nil || string(fs.now[name].now) != string(f.now)) && string(fs.now[name+AsideSuffix].now) != string(f.now) {
			t.Errorf("%s was changed", name)
		}
	}
	d.check(t, fs)
	for i, fs := range left {
		d.o.Known = known
		if r := d.verify(t, fs); len(r.Damage) > 0 {
			if d.part.From < d.part.To && !slices.Contains(r.Runs, d.part) {
				t.Errorf("got the runs %v, want %v as before the repair", r.Runs, d.part)
			}
			d.repair(t, fs)
		}
		d.check(t, fs)
		if t.Failed() {
			t.Fatalf("killed at change %d of %d", i, len(left))
		}
	}
}

// TestRepair: of a damaged log, only the damaged blocks are in no run, or all blocks of the damaged segments. A repair keeps any run, or
// nothing, also if it was killed at any moment and repeated.
func TestRepair(t *testing.T) {
	flip := func(fs *memFS, name string, at int) {
		b := fs.now[name].now
		b[(at+len(b))%len(b)] ^= 1
	}
	for name, c := range map[string]struct {
		damage func(fs *memFS, names []string)
		lost   []int // segments of which no record can be read
		most   int   // the largest number of other records that cannot be read
		runs   int
	}{
		"flip in a middle segment":       {func(fs *memFS, names []string) { flip(fs, names[4], dataOffset+300) }, nil, 1, 2},
		"flip at its end":                {func(fs *memFS, names []string) { flip(fs, names[2], -1) }, nil, 1, 2},
		"flips at two places":            {func(fs *memFS, names []string) { flip(fs, names[2], dataOffset+5); flip(fs, names[2], -1) }, nil, 2, 3},
		"flip in the last segment":       {func(fs *memFS, names []string) { flip(fs, names[5], dataOffset+5) }, nil, 1, 2},
		"header of the last segment":     {func(fs *memFS, names []string) { flip(fs, names[5], 9) }, []int{5}, 0, 1},
		"header of the first segment":    {func(fs *memFS, names []string) { flip(fs, names[0], 9) }, []int{0}, 0, 1},
		"both statuses":                  {func(fs *memFS, names []string) { flip(fs, names[3], slotStride); flip(fs, names[3], 2*slotStride) }, []int{3}, 0, 2},
		"last segment missing":           {func(fs *memFS, names []string) { delete(fs.now, names[5]) }, []int{5}, 0, 1},
		"middle segment missing":         {func(fs *memFS, names []string) { delete(fs.now, names[3]) }, []int{3}, 0, 2},
		"two segments missing":           {func(fs *memFS, names []string) { delete(fs.now, names[2]); delete(fs.now, names[3]) }, []int{2, 3}, 0, 2},
		"first and last segment missing": {func(fs *memFS, names []string) { delete(fs.now, names[0]); delete(fs.now, names[5]) }, []int{0, 5}, 0, 1},
		"segment of another log":         {func(fs *memFS, names []string) { fs.now[names[1]].now = otherLog(t).now[names[1]].now }, []int{1}, 0, 2},
		"middle segment emptied":         {func(fs *memFS, names []string) { fs.now[names[3]].now = nil }, []int{3}, 0, 2},
		"middle segment cut": {func(fs *memFS, names []string) {
			f := fs.now[names[3]]
			f.now = f.now[:len(f.now)-7]
		}, nil, 1, 2},
		"everything missing": {func(fs *memFS, _ []string) { clear(fs.now) }, []int{0, 1, 2, 3, 4, 5}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			fs, o, l, w := segmentsLog(t)
			put(t, l, w, "last")
			put(t, l, w, "very last")
			list, end := l.Segments(), l.End()
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			o.Known = end
			d := damagedLog{o: o, w: w}
			c.damage(fs, slices.Sorted(maps.Keys(fs.now)))
			r := d.verify(t, fs)
			runs := slices.DeleteFunc(slices.Clone(r.Runs), func(r Run) bool { return r.From == r.To })
			if len(runs) != c.runs || r.End != end || r.From != firstPosition {
				t.Errorf("got %+v, want %d runs", r, c.runs)
			}
			for position := range w {
				lost := slices.ContainsFunc(c.lost, func(i int) bool { return list[i].Base <= position && position < list[i].End })
				if !lost && !slices.ContainsFunc(runs, func(r Run) bool { return r.From <= position && position < r.To }) {
					c.most--
				}
			}
			if c.most < 0 {
				t.Errorf("%d records too many are in no run: %v", -c.most, runs)
			}
			for _, d.part = range append(runs, Run{end, end}) {
				d.o.Known = end
				d.killed(t, fs)
			}
		})
	}
}

// otherLog returns another log with the same records.
func otherLog(t *testing.T) *memFS {
	t.Helper()
	fs, _, l, _ := segmentsLog(t)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return fs
}

// TestRepairAgain: a second repair leaves the files that the first one has set aside as they are.
func TestRepairAgain(t *testing.T) {
	fs, o, l, w := segmentsLog(t)
	end := l.End()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	d := damagedLog{o: o, w: w, part: Run{end, end}}
	first := fs.now[segmentName(firstPosition)]
	d.repair(t, fs)
	fs.now[segmentName(firstPosition)] = &memFile{now: []byte("again")}
	d.repair(t, fs)
	for suffix, want := range map[string]string{"": string(first.now), "-2": "again"} {
		if f := fs.now[segmentName(firstPosition)+AsideSuffix+suffix]; f == nil || string(f.now) != want {
			t.Errorf("%s is missing or was changed", AsideSuffix+suffix)
		}
	}
	d.check(t, fs)
}

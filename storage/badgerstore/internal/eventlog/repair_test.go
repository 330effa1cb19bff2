package eventlog

import (
	"errors"
	"maps"
	"slices"
	"testing"
)

// damagedLog is a damaged log with what its repair must keep.
type damagedLog struct {
	o         Options // without FS
	w         written // all records
	keep, end int64   // for Apply, see repair
}

// cutting says which part of a log a repair keeps.
type cutting string

const (
	keepAll cutting = "all"
	cutOff  cutting = "up to the first loss"
	cutHole cutting = "up to the first loss, with a hole behind"
)

// repair repairs the log as a killed and repeated repair does.
func (d *damagedLog) repair(t *testing.T, fs *memFS, c cutting) (losses []Loss) {
	t.Helper()
	o := d.o
	o.FS = fs
	r, err := PlanRepair(o, func([]byte) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	if d.end == 0 {
		d.keep, d.end = r.End, r.End
		if len(r.Losses) > 0 && c != keepAll {
			d.keep = r.Losses[0].From
		}
		if c == cutOff {
			d.end = d.keep
		}
	}
	if _, err := r.Apply(d.keep, d.end); err != nil {
		t.Fatal(err)
	}
	return r.Losses
}

// check fails unless a repaired log has the records of kept, and new records get positions after all positions in holes.
func (d *damagedLog) check(t *testing.T, fs *memFS, kept written) {
	t.Helper()
	o := d.o
	o.FS, o.Known = fs, d.end
	if r, err := Verify(o); err != nil || len(r.Damage) > 0 {
		t.Fatalf("Verify: got %v, %v", r.Damage, err)
	}
	l, all := mustOpen(t, o), maps.Clone(kept)
	wantAll(t, l, kept)
	if position := put(t, l, all, "new"); position < d.end {
		t.Errorf("a new record is at %d, want at least %d", position, d.end)
	}
	for position := range d.w {
		if b, err := l.Read(position, nil); position < d.end && all[position] == "" && (!errors.Is(err, ErrGone) || position >= l.From()) {
			t.Errorf("Read %d, and the log is whole from %d: got %q, %v, want %v", position, l.From(), b, err, ErrGone)
		}
	}
	putUntil(t, l, all, len(l.Segments())+2)
	from := l.From()
	l.Abandon()
	l = mustOpen(t, o)
	wantAll(t, l, all)
	if l.From() != from {
		t.Errorf("From: got %d after another start, want %d", l.From(), from)
	}
	l.Abandon()
}

// killed repairs and checks the log, and again for a repair that was killed before any of its changes and repeated.
func (d *damagedLog) killed(t *testing.T, damaged *memFS, c cutting) {
	t.Helper()
	fs, left := damaged.clone(), []*memFS{damaged}
	fs.at = func(int) { left = append(left, fs.clone()) }
	losses := d.repair(t, fs, c)
	fs.at = nil
	kept := maps.Clone(d.w)
	maps.DeleteFunc(kept, func(position int64, _ string) bool {
		return position >= d.keep || slices.ContainsFunc(losses, func(l Loss) bool { return l.From <= position && position < l.To })
	})
	d.check(t, fs, kept)
	for i, fs := range left {
		o := d.o
		o.FS, o.Known = fs, d.end
		r, err := Verify(o)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Damage) > 0 {
			d.repair(t, fs, c)
		}
		d.check(t, fs, kept)
		if t.Failed() {
			t.Fatalf("killed at change %d of %d", i, len(left))
		}
	}
}

// TestRepair: a repair loses the damaged blocks only, or everything from the first one on. New records get positions after
// all holes, also if the repair was killed at any moment and repeated.
func TestRepair(t *testing.T) {
	flip := func(fs *memFS, name string, at int) {
		b := fs.now[name].now
		b[(at+len(b))%len(b)] ^= 1
	}
	for name, c := range map[string]struct {
		damage func(fs *memFS, names []string)
		lost   []int // segments that are lost whole
		most   int   // the largest number of other records that are lost
	}{
		"flip in a middle segment":       {func(fs *memFS, names []string) { flip(fs, names[4], dataOffset+300) }, nil, 1},
		"flip at its end":                {func(fs *memFS, names []string) { flip(fs, names[2], -1) }, nil, 1},
		"flips at two places":            {func(fs *memFS, names []string) { flip(fs, names[2], dataOffset+5); flip(fs, names[2], -1) }, nil, 2},
		"flip in the last segment":       {func(fs *memFS, names []string) { flip(fs, names[5], dataOffset+5) }, nil, 1},
		"header of the last segment":     {func(fs *memFS, names []string) { flip(fs, names[5], 9) }, nil, 0},
		"header of the first segment":    {func(fs *memFS, names []string) { flip(fs, names[0], 9) }, nil, 0},
		"both statuses":                  {func(fs *memFS, names []string) { flip(fs, names[3], slotStride); flip(fs, names[3], 2*slotStride) }, nil, 0},
		"last segment missing":           {func(fs *memFS, names []string) { delete(fs.now, names[5]) }, []int{5}, 0},
		"middle segment missing":         {func(fs *memFS, names []string) { delete(fs.now, names[3]) }, []int{3}, 0},
		"two segments missing":           {func(fs *memFS, names []string) { delete(fs.now, names[2]); delete(fs.now, names[3]) }, []int{2, 3}, 0},
		"first and last segment missing": {func(fs *memFS, names []string) { delete(fs.now, names[0]); delete(fs.now, names[5]) }, []int{0, 5}, 0},
		"segment of another log":         {func(fs *memFS, names []string) { fs.now[names[1]].now = otherLog(t).now[names[1]].now }, []int{1}, 0},
		"middle segment emptied":         {func(fs *memFS, names []string) { fs.now[names[3]].now = nil }, []int{3}, 0},
		"middle segment cut": {func(fs *memFS, names []string) {
			f := fs.now[names[3]]
			f.now = f.now[:len(f.now)-7]
		}, nil, 1},
		"everything missing": {func(fs *memFS, _ []string) { clear(fs.now) }, []int{0, 1, 2, 3, 4, 5}, 0},
	} {
		for _, cutting := range []cutting{keepAll, cutOff, cutHole} {
			t.Run(name+", kept "+string(cutting), func(t *testing.T) {
				fs, o, l, w := segmentsLog(t)
				put(t, l, w, "last")
				list, end := l.Segments(), l.End()
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
				o.Known = end
				d := damagedLog{o: o, w: w}
				c.damage(fs, slices.Sorted(maps.Keys(fs.now)))
				losses, most := d.planned(t, fs), c.most
				for position := range w {
					whole := slices.ContainsFunc(c.lost, func(i int) bool { return list[i].Base <= position && position < list[i].End })
					if lost := slices.ContainsFunc(losses, func(l Loss) bool { return l.From <= position && position < l.To }); lost && !whole {
						most--
					}
				}
				if most < 0 {
					t.Errorf("the repair loses %d records too many: %v", -most, losses)
				}
				if len(losses) == 0 || losses[0].From > firstPosition || cutting != cutOff { // otherwise nothing is left
					d.killed(t, fs, cutting)
				}
			})
		}
	}
}

// planned returns the losses of a plan, and fails if the plan changes the log.
func (d *damagedLog) planned(t *testing.T, fs *memFS) []Loss {
	t.Helper()
	o, before := d.o, fs.clone()
	o.FS = fs
	r, err := PlanRepair(o, func([]byte) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	if !maps.EqualFunc(fs.now, before.now, func(a, b *memFile) bool { return string(a.now) == string(b.now) }) {
		t.Error("a plan has changed files")
	}
	return r.Losses
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

// TestRepairAgain: a second repair keeps the holes of the first one, and leaves the files that the first one has set aside
// as they are.
func TestRepairAgain(t *testing.T) {
	fs, o, l, w := segmentsLog(t)
	list := l.Segments()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	o.Known = list[5].End
	d := damagedLog{o: o, w: w}
	segment := segmentName(list[1].Base)
	flip := func(at int) string {
		fs.now[segment].now[dataOffset+at] ^= 1
		return string(fs.now[segment].now)
	}
	lose := func(losses []Loss) {
		maps.DeleteFunc(w, func(position int64, _ string) bool { return position >= losses[0].From && position < losses[0].To })
	}
	first := flip(700)
	lose(d.repair(t, fs, keepAll))
	second := flip(300)
	d.end = 0
	lose(d.repair(t, fs, keepAll))
	for suffix, want := range map[string]string{".damaged": first, ".damaged-2": second} {
		if f := fs.now[segment+suffix]; f == nil || string(f.now) != want {
			t.Errorf("%s is missing or was changed", segment+suffix)
		}
	}
	d.check(t, fs, w)
}

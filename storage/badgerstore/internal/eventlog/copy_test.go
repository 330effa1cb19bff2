package eventlog

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"testing"
)

// TestCopy: a copy has exactly the records that were written before, with hard links and without. Later records, removals
// and statuses of the log do not change the copy. Writes to the copy do not change the log.
func TestCopy(t *testing.T) {
	for name, fs := range map[string]FS{"links": OS, "copies": struct{ FS }{OS}} {
		t.Run(name, func(t *testing.T) {
			o := Options{FS: fs, Dir: t.TempDir(), SegmentSize: 1 << 10, Power: true, Boot: 1}
			l, w := mustOpen(t, o), written{}
			putUntil(t, l, w, 6)
			if err := l.Remove(l.Segments()[1].Base); err != nil {
				t.Fatal(err)
			}
			for position := range w {
				if position < l.Segments()[0].Base {
					delete(w, position)
				}
			}
			c := o
			c.Dir = t.TempDir()
			if err := l.Copy(c.Dir, func() error { return nil }); err != nil {
				t.Fatalf("Copy: %v", err)
			}
			wantLinks := 0
			if name == "links" {
				wantLinks = len(l.Segments()) - 1
			}
			if got := links(t, o.Dir, c.Dir); got != wantLinks {
				t.Errorf("got %d hard links, want %d", got, wantLinks)
			}
			later := maps.Clone(w)
			putUntil(t, l, later, 9)
			if r, err := Verify(c); err != nil || len(r.Damage) > 0 || r.Torn.Bytes > 0 || r.Records != len(w) {
				t.Errorf("Verify: got %+v, %v, want %d records", r, err, len(w))
			}
			copied := mustOpen(t, c)
			wantAll(t, copied, w)
			putUntil(t, copied, w, 9)
			if err := copied.Remove(copied.Segments()[2].Base); err != nil {
				t.Fatal(err)
			}
			if err := copied.Close(); err != nil {
				t.Fatal(err)
			}
			wantAll(t, l, later)
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			if r, err := Verify(o); err != nil || len(r.Damage) > 0 || r.Records != len(later) {
				t.Errorf("Verify of the log: got %+v, %v, want %d records", r, err, len(later))
			}
		})
	}
}

// links returns how many files of a directory are hard links to the files with their names in another directory.
func links(t *testing.T, dir, other string) (n int) {
	t.Helper()
	names, err := OS.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		a, err := os.Stat(filepath.Join(dir, name))
		b, err2 := os.Stat(filepath.Join(other, name))
		if err == nil && err2 == nil && os.SameFile(a, b) {
			n++
		}
	}
	return n
}

// TestCopyCutOff: the last segment of a copy says where it ends, so a copy that is cut off is damaged, and not torn.
func TestCopyCutOff(t *testing.T) {
	o := Options{Dir: t.TempDir(), SegmentSize: 1 << 10, Boot: 1}
	l, w := mustOpen(t, o), written{}
	defer l.Abandon()
	putUntil(t, l, w, 3)
	put(t, l, w, "the last")
	c := o
	c.Dir = t.TempDir()
	if err := l.Copy(c.Dir, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	last := l.Segments()[2]
	path := filepath.Join(c.Dir, segmentName(last.Base))
	info, err := os.Stat(path)
	if err != nil || info.Size() != dataOffset+last.End-last.Base {
		t.Fatalf("the last segment: got %v, %v, want %d bytes", info, err, dataOffset+last.End-last.Base)
	}
	if err := os.Truncate(path, info.Size()-3); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(c); !errors.Is(err, ErrDamaged) {
		t.Errorf("Open: got %v, want ErrDamaged", err)
	}
}

// TestCopyEnds: Copy ends with the error of proceed.
func TestCopyEnds(t *testing.T) {
	_, _, l, _ := segmentsLog(t)
	stop := errors.New("stop")
	calls := 0
	err := l.Copy("copy", func() error {
		if calls++; calls == 3 {
			return stop
		}
		return nil
	})
	if !errors.Is(err, stop) || calls != 3 {
		t.Errorf("Copy: got %v after %d calls, want %v after 3", err, calls, stop)
	}
}

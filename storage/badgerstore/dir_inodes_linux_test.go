package badgerstore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// takeInodes creates files next to the directory of a store until no inode is left, and also takes the inodes that the store frees afterwards. giveBack
// deletes these files.
func takeInodes(t *testing.T, dir string) (giveBack func()) {
	t.Helper()
	var names []string
	take := func() error {
		for {
			name := filepath.Join(filepath.Dir(dir), fmt.Sprint("others", len(names)))
			if err := os.WriteFile(name, nil, 0o600); err != nil {
				return err
			}
			names = append(names, name)
		}
	}
	if err := take(); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	stop := keepDoing(func() { _ = take() })
	return func() {
		stop()
		for _, name := range names {
			if err := os.Remove(name); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestNoInodes: another program takes every inode while the store counts, changes keys and compacts its tables. The
// store refuses requests, and says why in the log. When inodes are free it resumes with every count and key. A failure means
// that the process dies, or that the keys and counters of a compaction are lost.
func TestNoInodes(t *testing.T) {
	if !mayMount(t) {
		return
	}
	var logged logLines
	dir := onTmpfs(t, 300)
	if err := syscall.Mount("", filepath.Dir(dir), "", syscall.MS_REMOUNT, "nr_inodes=200"); err != nil {
		t.Fatal(err)
	}
	o := Options{Logger: logged.logger(), segmentSize: 4 << 20, MaxHistory: 32 << 20}
	s := mustOpen(t, dir, o)
	l := startLoad(t, s)
	const rounds = 3
	for range rounds {
		before := sum(&l.answered)
		waitUntil(t, "requests are counted", func() bool { return sum(&l.answered) > before+5000 })
		giveBack := takeInodes(t, dir)
		waitUntil(t, "the store is full", func() bool { return s.space.Full() || s.healing.runs.Load() })
		refused := sum(&l.refused)
		waitUntil(t, "requests are refused", func() bool { return sum(&l.refused) > refused+1000 })
		giveBack()
		waitUntil(t, "there is room", func() bool { return s.Health(t.Context()) == nil })
	}
	l.end(t)
	// Badger may need an inode before the store sees that few are left. Then the database is rebuilt when there is room.
	if n := logged.lines("few_inodes=true") + logged.lines("it is rebuilt from the event log"); n < rounds {
		t.Errorf("logged:\n%.3000s\nwant at least %d lines that the disk is full", logged.text.String(), rounds)
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if damages := checkDamages(t, dir); len(damages) > 0 {
		t.Errorf("Check: got %.3000q, want no damage", damages)
	}
	l.wantCounted(t, openAlone(t, dir, o))
}

package caddymodule

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRebuildCommand: rebuild prints its plan. With --yes it replaces a damaged database, keeps the old files, and
// verifies the store. Without the whole event log it refuses.
func TestRebuildCommand(t *testing.T) {
	dir := usedStore(t, 20)
	name := damageTable(t, dir)
	_, _, err := runCommand("check", checkCommand, "--store", "badger:"+dir)
	wantText(t, "check", err, "is damaged in 1 places: see limitkeeper rebuild --help")
	out, _, err := runCommand("rebuild", rebuildCommand, "--store", "badger:"+dir)
	wantText(t, "rebuild", err, "--yes")
	if !strings.HasPrefix(out, "A new database will be made") {
		t.Errorf("rebuild: got %q, want what it would do", out)
	}
	out, progress, err := runCommand("rebuild", rebuildCommand, "--store", "badger:"+dir, "--yes")
	if err != nil || !strings.Contains(out, "The store is whole: ") || !strings.Contains(progress, "replayed ") {
		t.Errorf("rebuild --yes: got %q, %q, %v", out, progress, err)
	}
	if kept, err := filepath.Glob(filepath.Join(dir, "damaged-*", name)); err != nil || len(kept) != 1 {
		t.Errorf("the damaged table: got %v, %v, want it in a directory", kept, err)
	}
	s := openBadger(t, dir)
	if _, err := s.AccountByName(t.Context(), "acme"); err != nil {
		t.Error(err)
	}
	_, _, err = runCommand("rebuild", rebuildCommand, "--store", "badger:"+dir)
	wantText(t, "of a store in use", err, "another process is using it")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	segments, err := filepath.Glob(filepath.Join(dir, "ledger", "*.seg"))
	if err != nil || len(segments) != 1 {
		t.Fatalf("segments: got %v, %v", segments, err)
	}
	if err := os.Truncate(segments[0], 5000); err != nil {
		t.Fatal(err)
	}
	_, _, err = runCommand("rebuild", rebuildCommand, "--store", "badger:"+dir, "--yes")
	wantText(t, "without the end of the event log", err, filepath.Base(segments[0]))
}

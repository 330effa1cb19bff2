package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRebuildCommand: rebuild prints its plan. With --yes it replaces a damaged database, keeps the old files, and
// verifies the store. It leaves a whole database alone. Without the whole event log it refuses.
func TestRebuildCommand(t *testing.T) {
	dir := usedStore(t, 20)
	name := damageTable(t, dir)
	_, _, err := runCommand("check", checkCommand, "--store", "badger:"+dir)
	wantText(t, "check", err, "is damaged in 1 place: run limitkeeper rebuild --store badger:"+dir)
	out, _, err := runCommand("rebuild", rebuildCommand, "--store", "badger:"+dir)
	if err != nil || !strings.HasPrefix(out, "A new database will be made") || !strings.HasSuffix(out, dryRun) {
		t.Errorf("rebuild: got %q, %v, want what it would do", out, err)
	}
	out, progress, err := runCommand("rebuild", rebuildCommand, "--store", "badger:"+dir, "--yes")
	if err != nil || !strings.Contains(out, "The store is whole: ") || !strings.Contains(progress, "replayed ") || !strings.HasSuffix(out, "Start the server.\n") {
		t.Errorf("rebuild --yes: got %q, %q, %v", out, progress, err)
	}
	if kept, err := filepath.Glob(filepath.Join(dir, "damaged-*", name)); err != nil || len(kept) != 1 {
		t.Errorf("the damaged table: got %v, %v, want it in a directory", kept, err)
	}
	out, _, err = runCommand("rebuild", rebuildCommand, "--store", "badger:"+dir, "--yes")
	if err != nil || !strings.HasSuffix(out, "there is nothing to rebuild.\n") {
		t.Errorf("rebuild --yes of a whole database: got %q, %v", out, err)
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
	segments, err := filepath.Glob(filepath.Join(dir, "eventlog", "*.seg"))
	if err != nil || len(segments) != 1 {
		t.Fatalf("segments: got %v, %v", segments, err)
	}
	if err := os.Truncate(segments[0], 5000); err != nil {
		t.Fatal(err)
	}
	_, _, err = runCommand("rebuild", rebuildCommand, "--store", "badger:"+dir, "--yes")
	wantText(t, "without the end of the event log", err, filepath.Base(segments[0]))
}

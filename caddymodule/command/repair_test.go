package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// dryRun ends what repair prints without --yes.
const dryRun = "Nothing was changed. Run the command again with --yes to do this.\n"

// TestRepairCommand: repair prints the damage, and the numbers of records that it would keep and lose. With --yes it keeps the damaged file
// under another name, and the store is whole afterwards.
func TestRepairCommand(t *testing.T) {
	dir := usedStore(t, 20)
	out, _, err := runCommand("repair", repairCommand, "--store", "badger:"+dir)
	if err != nil || !strings.HasPrefix(out, "The event log is whole") {
		t.Errorf("repair of a whole store: got %q, %v", out, err)
	}
	segments, err := filepath.Glob(filepath.Join(dir, "eventlog", "*.seg"))
	if err != nil || len(segments) != 1 {
		t.Fatalf("segments: got %v, %v", segments, err)
	}
	b, err := os.ReadFile(segments[0])
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-50] ^= 1
	if err := os.WriteFile(segments[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err = runCommand("check", checkCommand, "--store", "badger:"+dir)
	wantText(t, "check", err, "is damaged in 1 place: run limitkeeper repair --store badger:"+dir)
	out, _, err = runCommand("repair", repairCommand, "--store", "badger:"+dir)
	for _, want := range []string{filepath.Base(segments[0]), "Kept: 0 readable events.", "Lost: ", " bytes with ", " readable events from 20", "Their counts stay: ", "history is lost", dryRun} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("repair: got %q, %v, want %q", out, err, want)
		}
	}
	out, _, err = runCommand("repair", repairCommand, "--store", "badger:"+dir, "--yes")
	if err != nil || !strings.Contains(out, filepath.Base(segments[0])+".damaged") || !strings.HasSuffix(out, "The event log is repaired. Start the server.\n") {
		t.Errorf("repair --yes: got %q, %v", out, err)
	}
	if out, _, err = runCommand("check", checkCommand, "--store", "badger:"+dir); err != nil {
		t.Errorf("check after the repair: got %q, %v", out, err)
	}
}

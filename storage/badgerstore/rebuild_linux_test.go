package badgerstore

import (
	"maps"
	"strings"
	"testing"
)

// TestRebuildFullDisk: without room for another database, Rebuild returns an error and changes nothing. With room, Rebuild
// restores the store.
func TestRebuildFullDisk(t *testing.T) {
	if !mayMount(t) {
		return
	}
	whole, want := filledStore(t, true)
	dir := onTmpfs(t, 64)
	copyDatabase(t, dir, whole)
	copyEventLog(t, dir, whole)
	remove(t, glob(t, dir, "MANIFEST"))
	before := state(t, dir)
	empty := fillDisk(t, dir)
	aside, err := Rebuild(dir, consent)
	if err == nil || aside != "" || !strings.Contains(err.Error(), "the disk is full") || !strings.Contains(err.Error(), "make room") {
		t.Errorf("Rebuild on a full disk: got %q, %v", aside, err)
	}
	if after := state(t, dir); !maps.Equal(after, before) {
		t.Errorf("Rebuild on a full disk: got files %q, want %q", after, before)
	}
	empty()
	mustRebuild(t, dir)
	wantDump(t, dir, want)
}

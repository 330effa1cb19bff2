package badgerstore

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// TestLostInventory: without INVENTORY, a store whose MANIFEST is damaged opens with all its data. A failure means that
// Badger deletes the tables that a cut MANIFEST does not list: disabled keys pass again.
func TestLostInventory(t *testing.T) {
	damages := map[string]func([]byte) []byte{"whole": func(b []byte) []byte { return b }}
	for _, name := range []string{"cut 7 bytes", "cut half", "flip 6"} {
		damages[name] = fileDamages()[name]
	}
	for _, clean := range []bool{true, false} {
		for name, store := range map[string]func(*testing.T, bool) (string, string){"whole log": filledStore, "first segments removed": imagedStore} {
			from, want := store(t, clean)
			remove(t, glob(t, from, table.InventoryName))
			for damage, fn := range damages {
				t.Run(stopName(clean)+"/"+name+"/"+damage, func(t *testing.T) { checkHealed(t, from, want, "MANIFEST", fn) })
			}
		}
	}
}

// TestLostInventoryIgnoresMemtables: without INVENTORY, neither a start nor Repair reads the .mem files of a killed store:
// they have transactions that the event log can lack. Repair changes nothing without consent. A failure means that a
// number of a key is given twice after a repair that cuts off its event.
func TestLostInventoryIgnoresMemtables(t *testing.T) {
	s := openAlone(t, t.TempDir(), damagedOptions)
	known(t, s, "key")
	young := t.TempDir() // without a table
	if err := s.syncEvents(); err != nil {
		t.Fatal(err)
	}
	copyKilled(t, young, s.dir)
	flushCheckpoint(t, s)
	known(t, s, "kept")
	cut := segmentData + s.events.End() - firstPosition
	known(t, s, "cut off")
	consume(t, s, request("cut off", 1, endless, noon))
	if err := s.syncEvents(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	copyKilled(t, dir, s.dir)
	remove(t, append(glob(t, young, table.InventoryName), glob(t, dir, table.InventoryName)...))
	changeByte(t, glob(t, young, "*"+table.LogSuffix)[0], 0) // a start that reads the file fails
	openAlone(t, young, damagedOptions)
	changeByte(t, segmentFiles(t, dir)[0], cut+30)
	before := contents(t, dir)
	for _, yes := range []bool{false, true} {
		lines := 0
		if _, err := Repair(dir, func(l []string) bool { lines = len(l); return yes }); err != nil || lines == 0 {
			t.Fatalf("Repair: got %d lines, %v", lines, err)
		}
		for name, content := range contents(t, dir) {
			if !yes && content != before[name] {
				t.Errorf("Repair changed %s before consent", name)
			}
		}
	}
	if got := checkDamages(t, dir); len(got) > 0 {
		t.Errorf("check after the repair: got %q, want no damage", got)
	}
	s = openAlone(t, dir, damagedOptions)
	if k, err := s.KeyByDigest(t.Context(), secrets.DigestOf("cut off")); err == nil {
		t.Errorf("got the key %+v, whose event the repair has cut off", k)
	}
	if k, err := s.KeyByDigest(t.Context(), secrets.DigestOf("kept")); err != nil || k.ID != "kept" {
		t.Errorf("got %+v, %v, want the key whose event was kept", k, err)
	}
	if _, err := os.Stat(filepath.Join(databaseIn(dir), table.InventoryName)); err != nil {
		t.Errorf("after the start: %v, want a new inventory", err)
	}
}

package badgerstore

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"testing"
)

// state returns the size and the time of the last write of each file below a directory.
func state(t *testing.T, dir string) map[string]string {
	t.Helper()
	m := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			m[path] = fmt.Sprint(info.Size(), info.ModTime(), info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestRefusedChangesNothing: Open of a store with a damaged event log, and Repair without consent, change no file. This includes
// files without data, such as .mem files.
func TestRefusedChangesNothing(t *testing.T) {
	d := storeToDamage(t, false)
	table, log := glob(t, d.dir, "*.sst")[0], filepath.Join(d.dir, eventLogDir, d.files[3])
	const at = 20 // the first record: some bytes of compressed zeros mean the same when they are changed
	for name, damaged := range map[string]map[string]int64{"event log": {log: segmentData + 5}, "both": {table: at, log: segmentData + 5}} {
		dir := copyOf(t, d.dir)
		if err := os.WriteFile(filepath.Join(databaseIn(dir), "00001.mem"), make([]byte, 4096), 0o600); err != nil { // as a kill leaves it
			t.Fatal(err)
		}
		for path, at := range damaged {
			relative, _ := filepath.Rel(d.dir, path)
			changeByte(t, filepath.Join(dir, relative), at)
		}
		before := state(t, dir)
		if s, err := open(dir, quiet); !isDamage(err) {
			t.Errorf("%s: open: got %v, %v, want damage", name, s, err)
		}
		refuse := func([]string) bool { return false }
		_, _ = Repair(dir, refuse)
		if after := state(t, dir); !maps.Equal(after, before) {
			t.Errorf("%s: files were changed: got %q, want %q", name, after, before)
		}
	}
}

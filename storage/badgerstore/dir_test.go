package badgerstore

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// mode returns the permissions of a directory.
func mode(t *testing.T, dir string) fs.FileMode {
	t.Helper()
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode().Perm()
}

// withMode creates a directory with a mode.
func withMode(t *testing.T, m fs.FileMode) string {
	t.Helper()
	if !hasModes {
		t.Skip("this system has no modes of directories")
	}
	dir := filepath.Join(t.TempDir(), "store")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, m); err != nil { // whatever the umask is
		t.Fatal(err)
	}
	return dir
}

// TestOpenRestrictsDirectories: no other user can read a store, also in a directory that other users can read. Badger's files are readable
// by all users, so Open sets the modes of the directories that have them, as a copy of a store can need it.
func TestOpenRestrictsDirectories(t *testing.T) {
	dir := withMode(t, 0o777)
	for range 2 {
		s := mustOpen(t, dir, Options{})
		for _, path := range []string{eventsIn(dir), databaseIn(dir), imagesIn(dir)} {
			if got := mode(t, path); got != 0o700 {
				t.Errorf("%s: got mode %o, want 700", path, got)
			}
			if err := os.Chmod(path, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatalf("Close: %v", err)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 3 {
			t.Errorf("got %v, %v, want three directories", entries, err)
		}
	}
}

// TestOpenRefusesStickyDirectory: Open refuses a directory for all users, such as /tmp, and does not change its mode, even
// when the directory is empty and the process is root.
func TestOpenRefusesStickyDirectory(t *testing.T) {
	dir := withMode(t, 0o777|os.ModeSticky)
	_, err := Open(dir, quiet)
	wantOneLine(t, err, dir)
	if err == nil || !strings.Contains(err.Error(), filepath.Join(dir, "limitkeeper")) {
		t.Errorf("Open: got error %v, want one that names a directory below it", err)
	}
	if got := mode(t, dir); got != 0o777 {
		t.Errorf("refused: got mode %o, want 777 as before", got)
	}
}

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

// TestOpenRestrictsDirectory: no other user can read a store. Badger's files are readable by all users, so Open sets the
// mode of the directory: of an existing empty directory, of an existing store, and of the target of a
// symbolic link. ownNames matches every file of a used store.
func TestOpenRestrictsDirectory(t *testing.T) {
	dir := withMode(t, 0o777)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "lost+found"), 0o700); err != nil { // as on a new volume
		t.Fatal(err)
	}
	for _, path := range []string{dir, dir, link} {
		s := mustOpen(t, path, Options{})
		if got := mode(t, dir); got != 0o700 {
			t.Errorf("opened: got mode %o, want 700", got)
		}
		if _, err := s.AccountByName(t.Context(), acct); err != nil {
			withAccount(t, s)
		}
		update(t, s, withKeys(1, 100))
		consume(t, s, request(newKey(1, 0).ID, 1, 1000, noon))
		if err := os.Chmod(dir, 0o755); err != nil { // as a copy of the store can have
			t.Fatal(err)
		}
		if name, err := foreignEntry(dir); name != "" || err != nil { // while it is open
			t.Errorf("got the foreign entry %s (%v), want none", name, err)
		}
		if err := s.Close(); err != nil {
			t.Fatalf("Close: %v", err)
		}
	}
}

// TestOpenRefusesSharedDirectory: Open refuses a readable directory with other files, and does not change its mode,
// because other programs would lose access. Both remedies in the error message work.
func TestOpenRefusesSharedDirectory(t *testing.T) {
	dir := withMode(t, 0o755)
	if err := os.WriteFile(filepath.Join(dir, "letter"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := Open(dir, quiet)
	wantOneLine(t, err, dir)
	if err == nil || !strings.Contains(err.Error(), "(letter)") || !strings.Contains(err.Error(), "chmod 700 "+dir) {
		t.Errorf("Open: got error %v, want one that names the letter and the command", err)
	}
	if got := mode(t, dir); got != 0o755 {
		t.Errorf("refused: got mode %o, want 755 as before", got)
	}
	if files := filesIn(t, dir); len(files) != 1 {
		t.Errorf("refused: got %q in the directory, want the letter alone", files)
	}
	openIn(t, filepath.Join(dir, "store"), Options{})
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	openIn(t, dir, Options{})
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

// TestOpenAcceptsHiddenFiles: Open accepts a directory with hidden files of file systems and tools, such as .snapshot.
func TestOpenAcceptsHiddenFiles(t *testing.T) {
	dir := withMode(t, 0o755)
	if err := os.WriteFile(filepath.Join(dir, ".gitkeep"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	openIn(t, dir, Options{})
	if got := mode(t, dir); got != 0o700 {
		t.Errorf("opened: got mode %o, want 700", got)
	}
}

package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// damageTable changes a byte in the middle of a table of a store and returns the name of the file.
func damageTable(t *testing.T, dir string) string {
	t.Helper()
	tables, err := filepath.Glob(filepath.Join(dir, "database", "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatalf("tables: got %v, %v", tables, err)
	}
	b, err := os.ReadFile(tables[0])
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(tables[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
	return filepath.Base(tables[0])
}

// TestCheckCommand: check says that a store is whole, or prints one line that names the damaged file
// and fails. It refuses a store that is in use or missing, and a Redis.
func TestCheckCommand(t *testing.T) {
	dir := usedStore(t, 20)
	out, progress, err := runCommand("check", checkCommand, "--store", "badger:"+dir)
	if err != nil || !strings.HasPrefix(out, "The store is whole: 1 table, 1 segment with ") || !strings.Contains(progress, "tables 1/1") {
		t.Errorf("check: got %q, %q, %v", out, progress, err)
	}
	s := openBadger(t, dir)
	_, _, err = runCommand("check", checkCommand, "--store", "badger:"+dir)
	wantText(t, "of a store in use", err, "another process is using it")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	name := damageTable(t, dir)
	out, _, err = runCommand("check", checkCommand, "--store", "badger:"+dir)
	wantText(t, "of a damaged store", err, "is damaged in 1 place: the next start rebuilds it")
	if strings.Count(out, "\n") != 1 || !strings.Contains(out, name) {
		t.Errorf("check: got %q, want one line that names %s", out, name)
	}
	if err := os.Remove(filepath.Join(dir, "database", "MANIFEST")); err != nil {
		t.Fatal(err)
	}
	out, _, err = runCommand("check", checkCommand, "--store", "badger:"+dir)
	wantText(t, "without a manifest", err, "is damaged in 1 place: ")
	if !strings.Contains(out, "MANIFEST: the file is missing") {
		t.Errorf("check without a manifest: got %q", out)
	}
	_, _, err = runCommand("check", checkCommand, "--store", "badger:"+t.TempDir())
	wantText(t, "of an empty directory", err, "there is no store in")
	_, _, err = runCommand("check", checkCommand)
	wantText(t, "of no store", err, "say which store: badger:<dir> or config:<file>")
	_, _, err = runCommand("check", checkCommand, "--store", "redis:localhost:1")
	wantText(t, "of a Redis", err, "want an embedded store")
	for _, other := range []string{"redis", "badger:", "/var/lib/limitkeeper"} {
		_, _, err = runCommand("check", checkCommand, "--store", other)
		wantText(t, "of "+other, err, "want an embedded store: badger:<dir> or config:<file>, got")
	}
}

func wantText(t *testing.T, what string, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "\n") {
		t.Errorf("%s: got error %v, want one line with %q", what, err, text)
	}
}

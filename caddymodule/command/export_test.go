package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
)

// When the store of the server refuses an export, the commands print the reason, write nothing, and keep an earlier file.
func TestExportRefused(t *testing.T) {
	s := newServer(t)
	s.Start("store badger %dir/store", "limitkeeper_api")
	file := filepath.Join(s.Dir, "prev.zst")
	s.Must(os.WriteFile(file, []byte("earlier"), 0o600))
	s.Must(os.Rename(filepath.Join(s.Dir, "store"), filepath.Join(s.Dir, "moved")))
	for _, name := range []string{file, "-"} {
		out, _, err := runCommand("backup", backupCommand, name, "--address", s.Admin)
		wantText(t, "backup "+name, err, "the directory was deleted or replaced: restore it")
		if out != "" {
			t.Errorf("backup %s: printed %q", name, out)
		}
	}
	if b, err := os.ReadFile(file); string(b) != "earlier" {
		t.Errorf("the earlier file: got %q, %v", b, err)
	}
	s.Must(os.Rename(filepath.Join(s.Dir, "moved"), filepath.Join(s.Dir, "store")))
}

// incompleteStore returns the directory of a store with an account whose restore was killed.
func incompleteStore(t *testing.T) string {
	t.Helper()
	dir := usedStore(t, 3)
	s := openBadger(t, dir)
	defer s.Close()
	_, err := s.UpdateAccount(t.Context(), "acct_1", func(a *core.Account) error {
		a.Import = &core.AccountImport{SHA256: "00", Run: "1"}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// After a killed restore, backup fails, names the accounts and keeps an earlier file, and the list marks the accounts.
func TestIncompleteAccount(t *testing.T) {
	dir, s := incompleteStore(t), newServer(t)
	want := `account "acme" is incomplete: run the restore or import again`
	file := filepath.Join(t.TempDir(), "prev.zst")
	s.Must(os.WriteFile(file, []byte("earlier"), 0o600))
	none := filepath.Join(t.TempDir(), "none")
	s.Must(openBadger(t, none).Close())
	_, _, err := runCommand("backup", backupCommand, file, "--store", "badger:"+none)
	wantText(t, "backup of a store without accounts", err, "the store has no accounts: nothing was written")
	_, _, err = runCommand("backup", backupCommand, file, "--store", "badger:"+dir)
	wantText(t, "backup of a store", err, want)
	s.Start("store badger "+dir, "limitkeeper_api")
	_, _, err = runCommand("backup", backupCommand, file, "--address", s.Admin)
	wantText(t, "backup of a server", err, want)
	if b, err := os.ReadFile(file); string(b) != "earlier" {
		t.Errorf("the earlier file: got %q, %v", b, err)
	}
	if out, err := s.command("list", "--address", s.Admin); err != nil || !strings.Contains(out, "Z  incomplete: run the restore or import again\n") {
		t.Errorf("account list: got %q, %v", out, err)
	}
}

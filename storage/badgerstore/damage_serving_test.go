package badgerstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// A table that is damaged while the store is open makes reads fail, and then the store refuses everything and names the file. The process
// goes on. No other store is open meanwhile: [table.Unreadable] counts the damage of each database in the process.
func TestDamageWhileServing(t *testing.T) {
	for name, harm := range map[string]func(file string, size int64) error{
		"cut off": func(file string, size int64) error { return os.Truncate(file, size/8) },
		"emptied": func(file string, _ int64) error { return os.Truncate(file, 0) },
		"changed": func(file string, size int64) error {
			f, err := os.OpenFile(file, os.O_RDWR, 0)
			if err != nil {
				return err
			}
			noise := strings.Repeat("\xff\x00\xa5", int(size/6))
			_, err = f.WriteAt([]byte(noise), size/4)
			return errors.Join(err, f.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := mustOpen(t, dir, Options{})
			if err := s.CreateAccount(t.Context(), &core.Account{ID: "a", Name: "a"}, &core.OwnerKey{ID: "o", AccountID: "a", Digest: core.DigestOf(t.Name())}); err != nil {
				t.Fatal(err)
			}
			const users = 5000
			for first := 0; first < users; first += 1000 {
				err := s.Update(t.Context(), "a", func(tx core.Tx) error {
					for i := range 1000 {
						text, _ := json.Marshal(map[string]string{"text": strings.Repeat(fmt.Sprintf("%x", (first+i)*7919), 200)})
						if err := tx.PutUser(&core.User{AccountID: "a", Name: "u", Metadata: text}); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = mustOpen(t, dir, Options{})
			tables, err := filepath.Glob(filepath.Join(dir, "*", "*.sst"))
			if more, _ := filepath.Glob(filepath.Join(dir, "*.sst")); err != nil || len(tables)+len(more) == 0 {
				t.Fatalf("no tables: %v", err)
			} else {
				tables = append(tables, more...)
			}
			for _, file := range tables {
				info, err := os.Stat(file)
				if err == nil {
					err = harm(file, info.Size())
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			deadline := time.Now().Add(time.Minute)
			for failed := false; s.failure() == nil; {
				for id := int64(1); id <= users; id += 50 {
					if _, err := s.User(t.Context(), "a", id); err != nil {
						failed = true
						if !errors.Is(err, core.ErrUnavailable) {
							t.Fatalf("user %d: got %v, want that the store is unavailable", id, err)
						}
					}
				}
				if time.Now().After(deadline) {
					t.Fatalf("the tables are damaged, reads have failed: %t, and the store serves", failed)
				}
				time.Sleep(10 * time.Millisecond)
			}
			if err := s.failure(); !isDamage(err) || !strings.Contains(err.Error(), ".sst") {
				t.Errorf("the store refuses with %v, want the damaged file", err)
			}
			if _, _, err := s.Users(t.Context(), "a", core.UserFilter{}, core.Page{Number: 1, Size: 1}); !errors.Is(err, core.ErrUnavailable) {
				t.Errorf("afterwards: got %v", err)
			}
			_ = s.Close() // it returns the damage
		})
	}
}

// Whole tables that stand under each other's names are damage: each is a valid table. A store that serves meanwhile does not take them for its own.
func TestSwappedTables(t *testing.T) {
	for name, serves := range map[string]bool{"closed": false, "serving": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			create := func(s *Store, id string) {
				t.Helper()
				err := s.CreateAccount(t.Context(), &core.Account{ID: id, Name: id}, &core.OwnerKey{ID: "o", AccountID: id, Digest: core.DigestOf(id)})
				if err != nil {
					t.Fatal(err)
				}
			}
			for i := range 2 { // each run leaves a table
				s := mustOpen(t, dir, Options{})
				create(s, fmt.Sprint("acct_", i))
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
			var s *Store
			if serves {
				s = mustOpen(t, dir, Options{})
			}
			swapTables(t, dir)
			if serves {
				if err := s.db.Verify(func(int) bool { return true }); !IsDamage(err) {
					t.Errorf("the check of a store that serves: %v, want damage", err)
				}
				if err := s.Close(); err != nil && !IsDamage(err) {
					t.Fatal(err)
				}
			}
			s, err := Open(dir, Options{})
			if err == nil {
				_ = s.Close()
				t.Fatal("a store with swapped tables was opened")
			}
			if !IsDamage(err) || !strings.Contains(err.Error(), ".sst: the file is another table than INVENTORY has") {
				t.Errorf("got %v, want the damage of a table", err)
			}
		})
	}
}

// swapTables gives two tables each other's names.
func swapTables(t *testing.T, dir string) {
	t.Helper()
	tables, err := filepath.Glob(filepath.Join(dir, "*.sst"))
	if err != nil || len(tables) < 2 {
		t.Fatalf("got the tables %v (%v), want two", tables, err)
	}
	other := tables[0] + ".other"
	for _, move := range [][2]string{{tables[0], other}, {tables[1], tables[0]}, {other, tables[1]}} {
		if err := os.Rename(move[0], move[1]); err != nil {
			t.Fatal(err)
		}
	}
}

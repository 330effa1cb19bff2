package badgerstore

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// testdata/schema5 has stores of schema 5, and the answers of the version that wrote them: see make_test.go there. One
// store was closed. One was killed when its newest users, keys and deletions were only in the .mem file. Two were killed
// while a user with 1,100 keys was deleted: one before the journal was complete, one after a part of it was applied.
var schema5Stores = []string{"closed", "killed", "incomplete", "complete"}

// schema5 unpacks a store of schema 5: see fixture.
func schema5(t *testing.T, name string) (dir, answers string) {
	t.Helper()
	return fixture(t, filepath.Join("testdata/schema5", name+".tar.gz"))
}

// fixture unpacks a store to a directory, and returns the answers of the version that wrote it.
func fixture(t *testing.T, name string) (dir, answers string) {
	t.Helper()
	dir = t.TempDir()
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	z, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir, answers
		}
		var content []byte
		if err == nil {
			content, err = io.ReadAll(r)
		}
		switch path := filepath.Join(dir, filepath.FromSlash(h.Name)); {
		case err != nil:
		case h.Typeflag == tar.TypeDir:
			err = os.MkdirAll(path, 0o700)
		case h.Name == "answers":
			answers = string(content)
		default:
			err = os.WriteFile(path, content, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// wantAnswers fails unless a store gives the same answers as the earlier version.
func wantAnswers(t *testing.T, s *Store, want, when string) {
	t.Helper()
	var digests []core.Digest
	for line := range strings.Lines(want) {
		var d []byte
		if n, _ := fmt.Sscanf(line, "digest %x:", &d); n == 1 {
			digests = append(digests, core.Digest(d))
		}
	}
	got, err := answersOf(s, acct, digests)
	other, err2 := answersOf(s, "other", nil)
	if err := errors.Join(err, err2); err != nil || len(digests) == 0 {
		t.Fatalf("%s: %v, with %d digests", when, err, len(digests))
	}
	gotLines, wantLines := strings.Split(got+other, "\n"), strings.Split(want, "\n")
	for i, line := range wantLines {
		if i >= len(gotLines) || gotLines[i] != line {
			t.Fatalf("%s: line %d of %d, got %d: got %q, want %q", when, i+1, len(wantLines), len(gotLines), gotLines[min(i, len(gotLines)-1)], line)
		}
	}
	wantAudited(t, s, when)
	if left := stored(t, s, string(kindJournal)); len(left) > 0 {
		t.Errorf("%s: got %d records of journals, want none", when, len(left))
	}
}

// wantAudited fails if the audit finds a problem, except of the imported key, whose counter is not the sum of its events.
func wantAudited(t *testing.T, s *Store, when string) {
	t.Helper()
	imported := fmt.Sprint(keyRef(t, s, "imported"))
	for _, problem := range audit(s) {
		if !strings.Contains(problem, imported) {
			t.Errorf("%s: audit: %s", when, problem)
		}
	}
}

// TestSchema5: a closed or killed store of schema 5 opens with all its data, counts new requests, and reuses no number. A
// failure means that an upgrade loses data.
func TestSchema5(t *testing.T) {
	for _, name := range schema5Stores {
		t.Run(name, func(t *testing.T) {
			dir, want := schema5(t, name)
			var s *Store
			for _, when := range []string{"upgraded", "opened again"} {
				s = openAlone(t, dir, quiet)
				wantAnswers(t, s, want, when)
				if name == "incomplete" || when == "upgraded" {
					abandon(t, s)
				} else if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if got := checkDamages(t, dir); len(got) > 0 {
				t.Errorf("Check: got %q, want no damage", got)
			}
			s = openAlone(t, dir, quiet)
			if n := expiringDays(t, s); n > 0 {
				t.Errorf("archive: %d records have a TTL, want none", n)
			}
			before := counterOf(t, s, ofKey("kept")).Requests[core.Month]
			last := int64(0)
			for _, k := range keysOf(t, s) {
				last = max(last, k.Seq)
			}
			late := &core.Key{AccountID: acct, ID: "new", UserID: 1, Status: core.KeyActive, Digest: core.DigestOf("new")}
			update(t, s, func(tx core.Tx) error { return tx.PutKey(late) })
			if least := map[string]int64{"killed": 79, "complete": 1177}[name]; late.Seq <= last || late.Seq < least {
				t.Errorf("a new key: got the number %d, want more than %d and at least %d", late.Seq, last, least)
			}
			for range 10 {
				consume(t, s, request("kept", 1, 1000, noon))
				consume(t, s, request("new", 1, 1000, noon))
			}
			for _, how := range []string{"closed", "killed", "closed"} {
				if how == "killed" {
					abandon(t, s)
				} else if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				s = openAlone(t, dir, quiet)
				wantUsed(t, s, ofKey("new"), 10)
				if got := counterOf(t, s, ofKey("kept")).Requests[core.Month]; got != before+10 {
					t.Errorf("%s and opened: got %d used, want %d", how, got, before+10)
				}
				wantAudited(t, s, how)
			}
		})
	}
}

// expiringDays returns the number of records of the archive with a TTL of Badger.
func expiringDays(t *testing.T, s *Store) (n int) {
	t.Helper()
	err := s.db.View(func(txn *badger.Txn) error {
		return snapshot{txn}.each(at(kindDay), func(p path, _ []byte) (bool, error) {
			item, err := txn.Get(p)
			if err == nil && item.ExpiresAt() > 0 {
				n++
			}
			return true, err
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// keysOf returns the keys of the account.
func keysOf(t *testing.T, s *Store) []*core.Key {
	t.Helper()
	keys, _, err := s.Keys(t.Context(), acct, core.KeyFilter{}, everything)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// TestSchema5Killed: a kill at every third failpoint of the upgrade, and another kill in the next attempt, lose no data.
func TestSchema5Killed(t *testing.T) {
	const each = 3
	t.Parallel()
	for _, name := range schema5Stores {
		t.Run(name, func(t *testing.T) {
			dir, want := schema5(t, name)
			kills := upgradeKilled(t, dir, func(n int) bool { return n%each == 0 })
			for i, killed := range kills {
				if i%4 == 0 {
					for _, again := range upgradeKilled(t, killed, func(n int) bool { return n == i*each }) {
						killed = again
					}
				}
				s := openAlone(t, killed, quiet)
				wantAnswers(t, s, want, fmt.Sprintf("killed at step %d", i*each))
				if err := errors.Join(s.Close(), os.RemoveAll(killed)); err != nil {
					t.Fatal(err)
				}
			}
			if len(kills)*each < 10 {
				t.Errorf("got %d kills, want more: the test proves nothing", len(kills))
			}
		})
	}
}

// upgradeKilled opens a copy of a store. It returns the directories that kills at the wanted failpoints leave. Of the
// failpoints of the replay, it takes only the first two.
func upgradeKilled(t *testing.T, dir string, wanted func(n int) bool) (left []string) {
	t.Helper()
	copied := t.TempDir()
	copyKilled(t, copied, dir)
	steps, replays := 0, 0
	s, err := open(copied, stepped(Options{Logger: quiet.Logger, failpoint: func(at failpoint) {
		if at == failReplay {
			replays++
		}
		if at == failReplay && replays > 2 {
			return
		}
		if wanted(steps) {
			left = append(left, t.TempDir())
			copyKilled(t, left[len(left)-1], copied)
		}
		steps++
	}}))
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	if err := errors.Join(s.Close(), os.RemoveAll(copied)); err != nil {
		t.Fatal(err)
	}
	return left
}

// copyKilled copies the files that a kill would leave now. It copies again when Badger changes its tables during the copy.
func copyKilled(t *testing.T, to, from string) {
	t.Helper()
	state := func() string {
		names, err := filepath.Glob(filepath.Join(from, "*"))
		manifest, err2 := os.ReadFile(filepath.Join(from, badger.ManifestFilename))
		inventory, err3 := os.ReadFile(filepath.Join(from, table.InventoryName))
		if errors.Is(err3, os.ErrNotExist) {
			err3 = nil
		}
		if err := errors.Join(err, err2, err3); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%q %s %s", names, manifest, inventory)
	}
	for range 1000 {
		before := state()
		if err := os.RemoveAll(to); err != nil {
			t.Fatal(err)
		}
		copyDatabase(t, to, from)
		copyEventLog(t, to, from)
		if state() == before {
			return
		}
	}
	t.Fatal("the files of Badger never stop changing")
}

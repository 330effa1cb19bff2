package badgerstore

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
)

// TestCheck: Check reports no damage of an undamaged store, after a clean stop and after a kill. It reports each damaged
// file in one line, and changes no file.
func TestCheck(t *testing.T) {
	for _, clean := range []bool{true, false} {
		dir, _ := filledStore(t, clean)
		if got := checkDamages(t, copyOf(t, dir)); len(got) > 0 {
			t.Errorf("clean %v: got damages %q, want none", clean, got)
		}
		tables, _ := filepath.Glob(filepath.Join(databaseIn(dir), "*.sst"))
		segments, _ := filepath.Glob(filepath.Join(dir, eventLogDir, "*"+segmentSuffix))
		names := []string{filepath.Base(tables[0]), filepath.Base(tables[1]), filepath.Base(segments[0])}
		changeByte(t, tables[0], 20) // the first record: some bytes of compressed zeros mean the same when they are changed
		changeByte(t, tables[1], 20)
		changeByte(t, segments[0], segmentData+5)
		before := contents(t, dir)
		got := checkDamages(t, dir)
		for _, name := range names {
			if n := strings.Count(strings.Join(got, "\n"), name); n != 1 {
				t.Errorf("clean %v: %s is in %d lines of %q, want 1", clean, name, n, got)
			}
		}
		if !maps.Equal(contents(t, dir), before) {
			t.Errorf("clean %v: the files were changed", clean)
		}
	}
}

// TestCheckInUse: Check refuses an open store.
func TestCheckInUse(t *testing.T) {
	dir := t.TempDir()
	openAlone(t, dir, quiet)
	if _, err := Check(dir, CheckOptions{}); !errors.Is(err, ErrInUse) {
		t.Errorf("Check: got %v, want %v", err, ErrInUse)
	}
}

// TestContradictions: the oracle of the tests finds each missing record. A failure means that the tests see less.
func TestContradictions(t *testing.T) {
	whole := t.TempDir()
	s := openAlone(t, whole, quiet)
	known(t, s, numbered("key", 100)...)
	update(t, s, withKeys(20, 5))
	update(t, s, func(tx core.Tx) error {
		return tx.PutUser(&core.User{AccountID: acct, Anchors: core.Anchors{{Start: noon}}})
	})
	update(t, s, func(tx core.Tx) error { return tx.PutPlan(&core.Plan{AccountID: acct, ID: "plan", Name: "plan"}) })
	for i := range 100 {
		consume(t, s, request(fmt.Sprint("key", i), 1, endless, noon))
	}
	writeCheckpoint(t, s)
	paths := stored(t, s, "AaUuPpKkdScCOo")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got := checkDamages(t, copyOf(t, whole)); len(got) > 0 {
		t.Errorf("with all records: got %q, want no damage", got)
	}
	kinds := map[byte]int{}
	for _, p := range paths {
		if kinds[p[0]]++; kinds[p[0]] > 2 {
			continue
		}
		dir := copyOf(t, whole)
		s := openAlone(t, dir, quiet)
		err := s.db.Update(func(txn *badger.Txn) error { return txn.Delete([]byte(p)) })
		if err := firstOf(err, s.Close()); err != nil {
			t.Fatal(err)
		}
		if got := checkDamages(t, dir); len(got) == 0 {
			t.Errorf("without the record %q: got no damage", p)
		} else if slices.ContainsFunc(got, func(line string) bool { return strings.Contains(line, "\n") }) {
			t.Errorf("without the record %q: got more than one line: %q", p, got)
		}
		_ = os.RemoveAll(dir)
	}
	for _, kind := range "AaUuPpKkdScCOo" {
		if kinds[byte(kind)] == 0 {
			t.Errorf("no record of the kind %c was deleted", kind)
		}
	}
}

// TestContradictingEvent: the oracle of the tests finds a counter that names a position of the event log without its event.
// The next start rebuilds a database that has failed for such a reason.
func TestContradictingEvent(t *testing.T) {
	for name, move := range map[string]int64{"between two records": 1, "after the event log": 1 << 30} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := openAlone(t, dir, quiet)
			known(t, s, "key")
			consume(t, s, request("key", 1, endless, noon))
			writeCheckpoint(t, s)
			err := s.db.Update(func(txn *badger.Txn) error {
				p := pagePath(ref{number: 1, account: 1, kind: uint32(kindKey)}.page())
				value, err := view{txn}.get(p)
				if err != nil {
					return err
				}
				pg, err := decodePage(value)
				if err != nil {
					return err
				}
				for cell, record := range pg {
					if record == nil {
						continue
					}
					c, err := decodeState(record)
					if err != nil {
						return err
					}
					c.chain[len(c.chain)-1] += move
					pg[cell] = c.encode(nil)
				}
				return txn.Set(p, pg.encode())
			})
			if err != nil {
				t.Fatal(err)
			}
			found, err := contradictions(s)
			if err != nil || len(found) == 0 {
				t.Fatalf("got the contradictions %v, %v, want at least one", found, err)
			}
			if err := s.fail(found[0]); err == nil || !doubtful(found[0]) || s.Close() == nil {
				t.Errorf("got no damage of the database: %v", found[0])
			}
			s = openAlone(t, dir, quiet)
			wantUsed(t, s, ofKey("key"), 1)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if got := checkDamages(t, dir); len(got) > 0 {
				t.Errorf("check after the start: %q", got)
			}
		})
	}
}

package badgerstore

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// TestEarlierSchemas: a closed or killed store of schema 6, 7, 8 or 9 opens with all its data, keeps it after another kill, and
// counts on. A failure means that an upgrade loses usage. testdata has the stores, and the program that made
// them: schema6/make_test.go, changed by make.diff of each later schema.
func TestEarlierSchemas(t *testing.T) {
	names, err := filepath.Glob(filepath.Join("testdata", "schema[6-9]", "*.tar.gz"))
	if err != nil || len(names) != 2*(schema-6) {
		t.Fatalf("got the stores %q, %v, want two of each schema from 6 to %d", names, err, schema-1)
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			dir, want := fixture(t, name)
			old, err := filepath.Glob(filepath.Join(dir, "*"+table.Suffix))
			if err != nil {
				t.Fatal(err)
			}
			for _, when := range []string{"upgraded", "opened after a kill", "opened again"} {
				s := openAlone(t, dir, quiet)
				wantAnswers(t, s, want, when)
				if when == "upgraded" {
					waitUntil(t, "the upgrade is in a table", func() bool { return len(s.db.Tables()) > len(old) })
					abandon(t, s)
					wantSchemaInTables(t, dir)
				} else if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if got := checkDamages(t, dir); len(got) > 0 {
				t.Errorf("Check: got %q, want no damage", got)
			}
			s := openAlone(t, dir, quiet)
			before := counterOf(t, s, ofKey("kept"))
			if before.Requests[core.Lifetime] != before.Requests[core.Year] || before.Requests[core.Year] == 0 {
				t.Errorf("got %v, want a lifetime that begins with the year", before.Requests)
			}
			c := request("kept", 1, 1<<20, noon.Add(3*time.Hour))
			c.Costs = []core.MeterCost{{Meter: "tokens", Cost: 5}}
			consume(t, s, c)
			for _, how := range []string{"counted", "killed", "closed"} {
				switch how {
				case "killed":
					writeCheckpoint(t, s)
					consume(t, s, c)
					abandon(t, s)
					s = openAlone(t, dir, quiet)
				case "closed":
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
					s = openAlone(t, dir, quiet)
				}
				want := before.Clone()
				want.Add(c.Charge())
				if how != "counted" {
					want.Add(c.Charge())
				}
				if got := counterOf(t, s, ofKey("kept")); !sameCounter(got, want) {
					t.Errorf("%s: got %+v, want %+v", how, got, want)
				}
			}
		})
	}
}

// TestUpgradeFromEventLog: a store of schema 9 whose tables are lost gets the current schema from the replay of its event
// log. Otherwise an earlier version could open it.
func TestUpgradeFromEventLog(t *testing.T) {
	for _, name := range []string{"closed", "killed"} {
		dir, want := fixture(t, filepath.Join("testdata", "schema9", name+".tar.gz"))
		for _, file := range glob(t, dir, "*"+table.Suffix) {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		}
		mustRebuild(t, dir)
		wantSchemaInTables(t, dir)
		s := openAlone(t, dir, quiet)
		wantAnswers(t, s, want, name)
		if got, err := s.version(); got != schema || err != nil {
			t.Errorf("%s: got schema %d, %v, want %d", name, got, err, schema)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLaterInTables: the later of the two records inTables counts, also when an earlier version has written it.
func TestLaterInTables(t *testing.T) {
	first, second := inTables{end: 5, missing: []missing{{3, true}}}, inTables{end: 7}
	for _, c := range []struct{ record, earlier []byte }{{first.encode(), second.encode()}, {second.encode(), first.encode()}, {second.encode(), nil}, {nil, second.encode()}} {
		if got, err := laterInTables(c.record, c.earlier); got.end != second.end || len(got.missing) > 0 || err != nil {
			t.Errorf("got %+v, %v, want %+v", got, err, second)
		}
	}
}

// wantSchemaInTables fails unless the tables of a killed store have the current schema. An earlier version could open the
// store otherwise.
func wantSchemaInTables(t *testing.T, dir string) {
	t.Helper()
	tables := t.TempDir()
	copyDatabase(t, tables, dir)
	db, err := table.Open(table.Options{Dir: tables, Logger: quiet.Logger})
	if err != nil {
		t.Fatal(err)
	}
	err = db.View(func(txn *badger.Txn) error {
		got, err := snapshot{txn}.number(at(kindSchema))
		if got != schema {
			t.Errorf("schema in the tables: got %d, want %d", got, schema)
		}
		return err
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestExternalIDsAfterUpgrade: users of a store of schema 8 have no external id. They can get one, which is unique and
// survives a kill.
func TestExternalIDsAfterUpgrade(t *testing.T) {
	dir, _ := fixture(t, filepath.Join("testdata", "schema8/closed.tar.gz"))
	s := openAlone(t, dir, quiet)
	put := func(user int64) error {
		return s.Update(t.Context(), acct, func(tx core.Tx) error {
			u, err := tx.User(user)
			if err == nil && u.ExternalID != "" {
				t.Errorf("user %d: got the external id %q, want none", user, u.ExternalID)
			}
			u.ExternalID = "cus_1"
			return firstOf(err, tx.PutUser(u))
		})
	}
	if err := put(1); err != nil {
		t.Fatal(err)
	}
	for _, when := range []string{"put", "killed"} {
		if when == "killed" {
			abandon(t, s)
			s = openAlone(t, dir, quiet)
		}
		list, n, err := s.Users(t.Context(), acct, core.UserFilter{ExternalID: "cus_1"}, everything)
		if err != nil || n != 1 || len(list) != 1 || list[0].ID != 1 || *list[0].Email != "1@example.com" {
			t.Errorf("%s: got %d users %+v, %v, want user 1", when, n, list, err)
		}
		if err := put(2); !errors.Is(err, core.ErrDuplicateExternalID) {
			t.Errorf("%s: the external id of another user: got %v, want %v", when, err, core.ErrDuplicateExternalID)
		}
	}
}

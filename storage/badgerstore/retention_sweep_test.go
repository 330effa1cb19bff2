package badgerstore

import (
	"slices"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/clocktest"
)

// TestSweep: the clock of the service decides how long request ids and days are kept. A sweep removes only expired
// records. No record has a TTL of Badger, because Badger reads the clock of the machine: with a wrong clock, repeated
// requests would be counted again.
func TestSweep(t *testing.T) {
	machine := clocktest.New(noon)
	s := openAlone(t, t.TempDir(), Options{segmentSize: 4 << 10, Clock: core.NewClock(machine.Read, nil)})
	known(t, s, "key")
	withID := func(id string) *core.Consumption {
		c := request("key", 1, endless, machine.Wall())
		c.RequestID = id
		return c
	}
	wantRecords := func(when string, ids, days, hours int) {
		t.Helper()
		i, d, h := len(stored(t, s, string(kindRequestID))), 0, 0
		for date, n := range archivedDates(t, s) {
			if date.IsHour() {
				h += n
			} else {
				d += n
			}
		}
		if i != ids || d != days || h != hours {
			t.Errorf("%s: got %d ids, %d days and %d hours, want %d, %d and %d", when, i, d, h, ids, days, hours)
		}
	}
	sweep := func() {
		t.Helper()
		writeCheckpoint(t, s)
		if err := s.sweep(s.now(), atOnce); err != nil {
			t.Fatal(err)
		}
	}
	consume(t, s, withID("first"))
	consumeN(t, s, "key", 200) // more than a segment
	consume(t, s, withID("second"))
	consumeN(t, s, "key", 200)
	sweep()
	wantRecords("at once", 2, 0, 0)

	machine.Pass(25 * time.Hour) // the day and the hour end, for the key and the user
	consume(t, s, request("key", 1, endless, machine.Wall()))
	machine.Step(2 * 365 * 24 * time.Hour)
	sweep()
	wantRecords("while the clock is held", 2, 2, 2)
	repeated := withID("second")
	repeated.Entry.At = noon
	if v, err := s.Consume(t.Context(), repeated); err != nil || v.FirstTerms == nil {
		t.Errorf("a repeated request: got %+v, %v, want its first answer", v, err)
	}
	err := s.db.View(func(txn *badger.Txn) error {
		for _, p := range slices.Concat(stored(t, s, string(kindRequestID)), stored(t, s, string(kindDay))) {
			if item, err := txn.Get([]byte(p)); err != nil || item.ExpiresAt() > 0 {
				t.Errorf("%q expires at %d by the clock of the machine, %v", p, item.ExpiresAt(), err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	machine.Step(-2 * 365 * 24 * time.Hour)
	machine.Pass(3 * 24 * time.Hour)
	consume(t, s, withID("third"))
	sweep()
	wantRecords("three days later", 1, 4, 4)
	for _, step := range []struct {
		when        string
		after       time.Duration // noon
		days, hours int
	}{
		{"at the end of the retention of hours", archiveHourTime, 4, 4},
		{"an hour later", archiveHourTime + time.Hour, 4, 2},
		{"a day after that", archiveHourTime + 26*time.Hour, 4, 0},
		{"at the end of the retention of days", archiveTime, 4, 0},
		{"a day later", archiveTime + 24*time.Hour, 2, 0},
	} {
		machine.Pass(noon.Add(step.after).Sub(machine.Wall()))
		sweep()
		wantRecords(step.when, 1, step.days, step.hours)
	}
}

// TestSweepDeleted: a sweep removes the days and the hours of deleted users when all of a record are expired. A failure means that the records of an
// account grow without end, or that its totals lack what deleted users have used.
func TestSweepDeleted(t *testing.T) {
	machine := clocktest.New(noon)
	s := openAlone(t, t.TempDir(), Options{Clock: core.NewClock(machine.Read, nil)})
	known(t, s, "key")
	consumeN(t, s, "key", 3)
	update(t, s, func(tx core.Tx) error { return tx.DeleteUser(1) })
	of := core.CounterID{Account: acct}
	both := daysAndHours(t, s, of)
	if len(both) != 2 || !both[1].Date.IsHour() {
		t.Fatalf("deleted users: got %+v, want a day and an hour", both)
	}
	const chunk = 32
	for _, step := range []struct {
		when  string
		after time.Duration // noon
		want  []core.CounterDay
	}{
		{"at the end of the retention of hours", archiveHourTime, both},
		{"when all hours of the record are expired", archiveHourTime + chunk*time.Hour, both[:1]},
		{"at the end of the retention of days", archiveTime, both[:1]},
		{"when all days of the record are expired", archiveTime + chunk*24*time.Hour, nil},
	} {
		machine.Pass(noon.Add(step.after).Sub(machine.Wall()))
		if err := s.sweep(s.now(), atOnce); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(step.want, daysAndHours(t, s, of), cmpopts.EquateEmpty()); d != "" {
			t.Errorf("%s: deleted users (-want +got):\n%s", step.when, d)
		}
		if n := len(stored(t, s, string(kindDeleted))); n != len(step.want) {
			t.Errorf("%s: got %d records, want %d", step.when, n, len(step.want))
		}
	}
}

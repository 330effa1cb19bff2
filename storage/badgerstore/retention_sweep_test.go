package badgerstore

import (
	"slices"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"

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
	wantRecords := func(when string, ids, days int) {
		t.Helper()
		if i, d := len(stored(t, s, string(kindRequestID))), len(stored(t, s, string(kindDay))); i != ids || d != days {
			t.Errorf("%s: got %d ids and %d days, want %d and %d", when, i, d, ids, days)
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
	wantRecords("at once", 2, 0)

	machine.Pass(25 * time.Hour) // the day ends, for the key and the user
	consume(t, s, request("key", 1, endless, machine.Wall()))
	machine.Step(2 * 365 * 24 * time.Hour)
	sweep()
	wantRecords("while the clock is held", 2, 2)
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
	wantRecords("three days later", 1, 4)
	machine.Pass((core.DaysKept - 3) * 24 * time.Hour)
	sweep()
	wantRecords("at the end of the retention", 1, 4)
	machine.Pass(3 * 24 * time.Hour)
	sweep()
	if n := len(stored(t, s, string(kindDay))); n >= 4 {
		t.Errorf("after the retention: got %d days, want fewer than 4", n)
	}
}

package badgerstore

import (
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/clocktest"
)

// TestClockAtTheStart: the wall clock is a year ahead when the process starts. The store compares it with the time of
// the last checkpoint, so no window begins and no history is removed while the clock is held. A failure means that a
// wrong clock, or a restart with a wrong clock, resets every quota.
func TestClockAtTheStart(t *testing.T) {
	dir, machine := t.TempDir(), clocktest.New(noon)
	var clock *core.Clock
	start := func() *Store {
		t.Helper()
		clock = core.NewClock(machine.Read, nil)
		return openAlone(t, dir, Options{segmentSize: 4 << 10, Logger: quiet.Logger, Clock: clock})
	}
	s := start()
	known(t, s, "key")
	consumeN(t, s, "key", 601)
	writeCheckpoint(t, s)
	abandon(t, s)

	machine.Pass(30 * 24 * time.Hour)
	s = start()
	if clock.State().Held {
		t.Error("the clock is held after 30 days without the process")
	}
	abandon(t, s)

	machine.Step(365 * 24 * time.Hour)
	s = start()
	if got := clock.Now(); !clock.State().Held || !got.Equal(noon.Truncate(time.Second)) {
		t.Errorf("a year ahead at the start: got %s, want the time of the last count, %s", got, noon)
	}
	c := request("key", 1, 1000, clock.Now())
	if v, err := s.Consume(t.Context(), c); err != nil || v.Usage.Used != 602 {
		t.Errorf("Consume: got %d used (%v), want 602", v.Usage.Used, err)
	}
	expired := func() {
		t.Helper()
		if err := s.removeHistory(s.now()); err != nil {
			t.Fatal(err)
		}
	}
	before := s.historyBytes()
	if expired(); s.historyBytes() != before {
		t.Error("history was removed while the clock was held")
	}
	machine.Pass(time.Minute)
	flushCheckpoint(t, s)
	if expired(); s.historyBytes() == before {
		t.Error("history is not removed after the clock was steady for a minute")
	}
}

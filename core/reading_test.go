package core

import (
	"testing"
	"time"
)

// stageRequest returns a request with three limits, and its result with the used shares in per cent: of the plan in a month and a minute, and of the key in
// a day.
func stageRequest(month, minute, day int64) (*Consumption, *ConsumeResult) {
	at := time.Date(2026, 3, 5, 10, 0, 0, 0, time.UTC)
	c := &Consumption{Account: "acct_1", KeyID: "key_1", UserID: 7, Shared: true, Cost: 1, Entry: Entry{At: at},
		Terms: Terms{PlanID: "plan_1", Period: Month, Limit: 100, Further: []Limit{{Meter: MeterRequests, Max: 100, Period: Minute}},
			Own: OwnLimits{Limits: []Limit{{Meter: "tokens", Max: 100, Period: Day}}}}}
	v := c.Result("", at, at, []int64{month, minute, day})
	return c, &v
}

// StageHash changes exactly when a decision may cause a new event: a threshold is reached, or a forecast is due after 5 per cent. Limits of a minute have
// no forecast. It takes no memory, because each decision above half of a limit computes it.
func TestStageHash(t *testing.T) {
	thresholds := []int64{80, 100}
	hash := func(month, minute, day int64) uint64 {
		c, v := stageRequest(month, minute, day)
		return c.StageHash(v, thresholds)
	}
	if h := hash(49, 79, 49); h != 0 {
		t.Errorf("got the hash %d below all thresholds and forecasts, want 0", h)
	}
	for name, c := range map[string]struct {
		from, to [3]int64
		changes  bool
	}{
		"nothing":                 {[3]int64{80, 0, 0}, [3]int64{84, 0, 0}, false},
		"a forecast":              {[3]int64{84, 0, 0}, [3]int64{85, 0, 0}, true},
		"the first forecast":      {[3]int64{49, 0, 0}, [3]int64{50, 0, 0}, true},
		"no forecast of a minute": {[3]int64{60, 50, 0}, [3]int64{60, 79, 0}, false},
		"a threshold of a minute": {[3]int64{60, 79, 0}, [3]int64{60, 80, 0}, true},
		"a limit of a key":        {[3]int64{60, 0, 79}, [3]int64{60, 0, 80}, true},
		"used up":                 {[3]int64{99, 0, 0}, [3]int64{100, 0, 0}, true},
		"beyond the limit":        {[3]int64{100, 0, 0}, [3]int64{250, 0, 0}, false},
	} {
		if changes := hash(c.from[0], c.from[1], c.from[2]) != hash(c.to[0], c.to[1], c.to[2]); changes != c.changes {
			t.Errorf("%s: the hash changes: %v, want %v", name, changes, c.changes)
		}
	}
	c, v := stageRequest(80, 80, 80)
	other := *c
	other.Limit = 99
	if c.StageHash(v, thresholds) == other.StageHash(new(other.Result("", c.Entry.At, c.Entry.At, []int64{80, 80, 80})), thresholds) {
		t.Error("another limit has the same hash")
	}
	if n := testing.AllocsPerRun(100, func() { c.StageHash(v, thresholds) }); n != 0 {
		t.Errorf("StageHash takes %v allocations", n)
	}
}

// The limits of the plan are read from the deciding counter, and the limits of the key from the counter of the key.
func TestReadings(t *testing.T) {
	c, v := stageRequest(80, 30, 90)
	user, key := CounterID{Account: "acct_1", UserID: 7}, CounterID{Account: "acct_1", KeyID: "key_1"}
	got := c.Readings(v, []int64{80, 100})
	if len(got) != 2 || got[0].Counter != user || got[0].Period != Month || got[1].Counter != key || got[1].Meter != "tokens" || got[1].UserID != 7 {
		t.Errorf("got %+v, want the month of the user and the tokens of the key", got)
	}
	if since := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC).Unix(); len(got) > 0 && got[0].Since != since {
		t.Errorf("the usage counts since %d, want %d", got[0].Since, since)
	}
}

// Each part of an id makes another id, and the same parts make the same id.
func TestEventID(t *testing.T) {
	ids := map[string]bool{}
	for range 2 {
		for _, id := range []string{EventID("a", "b", "c", 1), EventID("a", "b", "c", 11), EventID("a", "bc", 1), EventID("a", "b", "c", "1 1"), EventID("a", "b", "c 1", 1), EventID("d", "b", "c", 1),
			EventID("a", "b", `c" "1`)} {
			ids[id] = true
			if err := (&Event{ID: id, Type: EventThreshold}).Check(); err != nil {
				t.Error(err)
			}
		}
	}
	if len(ids) != 7 {
		t.Errorf("got %d ids, want 7", len(ids))
	}
}

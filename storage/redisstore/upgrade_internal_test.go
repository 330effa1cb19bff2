package redisstore

import (
	"encoding/hex"
	"reflect"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// The counters of a key and of its user as the version before has stored them: used 7 times in the year, of these 5
// in the month, 4 in the week and 3 on the day of noon, last at noon. The key has 2 omitted denials, and was never moved.
const (
	oldStarts = "00490a" + "004906" + "0048ff" + "0048c4" // 2021-03-12, 2021-03-08, 2021-03-01, 2021-01-01
	oldUsage  = "00000000000003" + "00000000000004" + "00000000000005" + "00000000000007"
	oldKey    = oldStarts + oldUsage + "00604b57c0" + "00000000" + "00000002" + "0000000000" + "00000000" + "00" + "00"
	oldUser   = oldStarts + oldUsage + "00604b57c0" + "00000000" + "00000000" + "00604b57c000000000" + "00" + "00"
)

// TestUpgrade: counters of the format before keep their usage, wherever they are read or written first. A failure means
// that an upgrade grants a quota again.
func TestUpgrade(t *testing.T) {
	var want core.Counter
	want.At, want.Requests, want.Today = noon.Unix(), core.PeriodUsage{3, 4, 5, 7, 0, 0, 7}, 3
	want.LastUsedAt, want.DeniedOmitted = noon, 2
	key := core.CounterID{Account: moveAccount, KeyID: "key_1"}
	request := func(after time.Duration) *core.Consumption {
		return &core.Consumption{Account: moveAccount, KeyID: "key_1", KeySeq: 1, UserID: 1, Cost: 1, Retention: 200 * 365 * 24 * time.Hour,
			Terms: core.Terms{Period: core.Year, Limit: 8}, Entry: core.Entry{At: noon.Add(after), KeyID: "key_1", UserID: 1, Cost: 1}}
	}
	for name, step := range map[string]func(m *moveTest){
		"read":            func(*moveTest) {},
		"count":           func(m *moveTest) { m.counted(request(time.Hour), true, &want) },
		"count next day":  func(m *moveTest) { m.counted(request(24*time.Hour), true, &want) },
		"count next year": func(m *moveTest) { m.counted(request(366*24*time.Hour), true, &want) },
		"count earlier":   func(m *moveTest) { m.counted(request(-48*time.Hour), true, &want) },
		"count tokens": func(m *moveTest) {
			c := request(time.Hour)
			c.Costs = []core.MeterCost{{Meter: "tokens", Cost: 9}}
			m.counted(c, true, &want)
		},
		"move":   func(m *moveTest) { m.moveTo(2) },
		"import": func(m *moveTest) { m.imported(key, &want) },
		"shared": func(m *moveTest) {
			c := request(time.Hour)
			c.Shared, c.Limit = true, 7
			m.counted(c, false, &want)
		},
		"a limit of the lifetime": func(m *moveTest) {
			c := request(366 * 24 * time.Hour)
			c.Further = []core.Limit{{Meter: core.MeterRequests, Max: 7, Period: core.Lifetime}}
			m.counted(c, false, &want)
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMoveTest(t)
			m.mustConsume(1)
			hash := m.s.o.usage(moveAccount, 1).counters()
			for field, value := range map[string]string{"1": oldKey, "u": oldUser} {
				b, err := hex.DecodeString(value)
				if err != nil || len(b) != counterSize {
					t.Fatalf("%d bytes, %v", len(b), err)
				}
				if err := m.s.client.Do(t.Context(), m.s.client.B().Hset().Key(hash).FieldValue().FieldValue(field, string(b)).Build()).Error(); err != nil {
					t.Fatal(err)
				}
			}
			before := want.Clone()
			step(m)
			m.wantCounter(key, &want)
			want = before
		})
	}
}

// counted makes a request, and compares the result with that of a counter in memory.
func (m *moveTest) counted(c *core.Consumption, allowed bool, model *core.Counter) {
	m.t.Helper()
	want := model.Consume(c, new(core.Bucket))
	got, err := m.s.Consume(m.t.Context(), c)
	if err != nil || !reflect.DeepEqual(got, want) || got.Allowed != allowed {
		m.t.Errorf("Consume: got %+v, %v, want %+v", got, err, want)
	}
}

// imported sets a counter to a larger usage.
func (m *moveTest) imported(of core.CounterID, want *core.Counter) {
	m.t.Helper()
	want.Add(&core.Charge{At: noon.AddDate(0, 1, 0), Cost: 1 << 41})
	if err := m.s.SetCounters(m.t.Context(), []core.CounterID{of}, []core.Counter{*want}); err != nil {
		m.t.Fatal(err)
	}
}

func (m *moveTest) wantCounter(of core.CounterID, want *core.Counter) {
	m.t.Helper()
	cs, err := m.s.Counters(m.t.Context(), []core.CounterID{of})
	if err != nil || !cs[0].Same(want) {
		m.t.Errorf("counter: got %+v, %v, want %+v", cs, err, want)
	}
}

package badgerstore

import (
	"slices"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// TestSetDaysDuringCheckpoint: SetDays replaces the days of a counter while a checkpoint archives them, by other days or by the same. A failure
// means that an import into a serving store loses days, or keeps days that it has replaced.
func TestSetDaysDuringCheckpoint(t *testing.T) {
	for _, test := range []struct {
		name  string
		begin func(t *testing.T, s *Store) (replacedBy []core.CounterDay)
	}{
		{"other days", func(t *testing.T, s *Store) []core.CounterDay {
			setDays(t, s, []core.CounterDay{keyDay(today-5, 5), keyDay(today-4, 4), keyDay(today-3, 3)})
			return []core.CounterDay{keyDay(today-4, 7)}
		}},
		{"the same days", func(t *testing.T, s *Store) []core.CounterDay {
			consumeOn(t, s, today, "key", 3)
			consumeOn(t, s, today+1, "key", 4)
			return daysOf(t, s, ofKey("key"))
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var h hook
			s := openAlone(t, t.TempDir(), Options{failpoint: h.step})
			known(t, s, "key")
			list := test.begin(t, s)
			h.once(failPages, func() { setDays(t, s, list) })
			for range 3 {
				writeCheckpoint(t, s)
				wantDays(t, s, ofKey("key"), list...)
			}
		})
	}
}

func setDays(t *testing.T, s *Store, list []core.CounterDay) {
	t.Helper()
	if err := s.SetDays(t.Context(), ofKey("key"), list); err != nil {
		t.Error(err)
	}
}

// TestKeepDays: the replay of a record with the state of a counter keeps the days of a lost checkpoint. A failure means that a settlement
// into a past day is lost, or counts twice, after a crash.
func TestKeepDays(t *testing.T) {
	number := func(used int64) []dayNumber { return []dayNumber{{today, record.DayAllowed, used}} }
	change := func(by int64) []dayNumber { return []dayNumber{{today, record.DayAllowed | dayChange, by}} }
	for _, test := range []struct {
		name                   string
		before, inRecord, want []dayNumber
	}{
		{"a change before the checkpoint", change(3), nil, change(3)},
		{"a change before and after the checkpoint", change(3), change(1), change(3)},
		{"a number before the checkpoint, and a change after it", number(5), change(1), number(5)},
		{"a change before the checkpoint, and a number after it", change(3), number(7), number(7)},
		{"two numbers", number(5), number(7), number(7)},
	} {
		state := counterState{days: test.inRecord}
		state.keepDays(&counterState{days: test.before})
		if !slices.Equal(state.days, test.want) {
			t.Errorf("%s: got %v, want %v", test.name, state.days, test.want)
		}
	}
}

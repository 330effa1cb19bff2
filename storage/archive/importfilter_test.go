package archive

import (
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// TestOldDaysAndHours: an import leaves out the days and hours that the target removes while the import lasts. A failure means that the import of a
// backup fails because they are missing then, or that it loses newer ones.
func TestOldDaysAndHours(t *testing.T) {
	now := time.Date(2026, time.March, 12, 12, 30, 0, 0, time.UTC)
	f := newFilter(ImportOptions{now: func() time.Time { return now }}, nil, "")
	day, hour := core.DateOf(now), core.HourOf(now)
	for date, out := range map[core.Date]bool{
		day: false, day - core.DaysKept + 2: false, day - core.DaysKept: true,
		hour: false, hour - core.HoursKept + 25: false, hour - core.HoursKept: true, hour - 3*core.HoursKept: true,
	} {
		if got := f.leavesOut(Record{Value: &Day{CounterDay: core.CounterDay{Date: date}}}); got != out {
			t.Errorf("%v: left out is %t, want %t", date, got, out)
		}
	}
}

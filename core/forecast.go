package core

import (
	"math"
	"time"
)

// PaceDays is the number of days, including the present one, whose use is the pace of a forecast.
const PaceDays = 7

// PaceFrom returns the first of the days whose use is the pace of a forecast.
func PaceFrom(now time.Time) Date { return DateOf(now) - PaceDays + 1 }

// maxForecast bounds how far a forecast looks ahead, for a limit without a reset.
const maxForecast = 100 * 365 * 24 * time.Hour

// NeedsDays reports whether the forecast of the limit uses the days of its counter: its window began before them.
func (u *LimitUsage) NeedsDays(now time.Time) bool {
	return !u.Limit.Unlimited() && u.Used < u.Max && u.Window.Start.Before(PaceFrom(now).Start())
}

// ExhaustsAt returns the time at which the limit is used up, in whole seconds: now if nothing is left, and the zero time if something is left at the reset. The pace
// is the cost that was allowed in the last [PaceDays] days, or the usage in the window so far if the window is younger. The caller passes these days of the counter when
// NeedsDays returns true.
func (u *LimitUsage) ExhaustsAt(days []DayTotals, now time.Time) time.Time {
	if u.Limit.Unlimited() {
		return time.Time{}
	}
	now = now.UTC().Truncate(time.Second)
	if u.Used >= u.Max {
		return now
	}
	since, used := u.Window.Start, u.Used
	if u.NeedsDays(now) {
		since, used = PaceFrom(now).Start(), 0
		for i := range days {
			used += days[i].Of(u.Meter).Allowed
		}
	}
	elapsed := max(time.Second, now.Sub(since))
	if used <= 0 {
		return time.Time{}
	}
	left := math.Ceil(float64(u.Max-u.Used) / float64(used) * elapsed.Seconds())
	if left > maxForecast.Seconds() {
		return time.Time{}
	}
	at := now.Add(time.Duration(left) * time.Second)
	if u.Window.Ends() && !at.Before(u.Window.End) {
		return time.Time{}
	}
	return at
}

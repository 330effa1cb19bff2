package core

import (
	"math"
	"time"
)

// PaceDays is the number of days, including today, whose allowed cost is the pace of a forecast.
const PaceDays = 7

// PaceFrom returns the first of the last [PaceDays] days.
func PaceFrom(now time.Time) Date { return DateOf(now) - PaceDays + 1 }

// maxForecast is the longest forecast, for a limit without a reset.
const maxForecast = 100 * 365 * 24 * time.Hour

// NeedsDays reports whether ExhaustsAt needs the days of the counter: the window of the limit began before PaceFrom.
func (u *LimitUsage) NeedsDays(now time.Time) bool {
	return !u.Limit.Unlimited() && u.Used < u.Max && u.Window.Start.Before(PaceFrom(now).Start())
}

// ExhaustsAt returns the time at which the limit is used up at the present pace, in whole seconds. It returns now if nothing is left, and the zero
// time if something is left at the reset. The pace is the allowed cost of the last [PaceDays] days; in a window that began later, it is the usage so
// far. days are the days of the counter from [PaceFrom] on. They are only needed if NeedsDays returns true.
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

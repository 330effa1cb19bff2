package core

import "time"

// OverageOn returns how much the overage of a limit changes on each day. The map has no entry for a day without a change. A change is negative when
// an adjustment gives usage back. days is the traffic of the counter, oldest first, from the start of the first window on. The period of the limit is
// a day or longer. A window that begins during a day counts that whole day.
func OverageOn(days []DayTotals, l Limit, anchors Anchors) map[Date]int64 {
	on := map[Date]int64{}
	var window Window
	var used, over int64
	for i := range days {
		d := &days[i]
		if w := anchors.Window(l.Period, endOf(d.Date)); !w.Start.Equal(window.Start) {
			window, used, over = w, 0, 0
		}
		t := d.Of(l.Meter)
		used += t.Used()
		if now := max(0, used-l.Max); now != over {
			on[d.Date], over = now-over, now
		}
	}
	return on
}

// endOf returns the last instant of a day.
func endOf(d Date) time.Time { return (d + 1).Start().Add(-time.Nanosecond) }

// OverageFrom returns the first of the days that [OverageOn] needs for the overage on day d: the day on which the window begins that contains the end of d.
func (l Limit) OverageFrom(d Date, anchors Anchors) Date {
	return DateOf(anchors.Window(l.Period, endOf(d)).Start)
}

// ExceedLimits returns the limits of the plan and of the overrides that deny nothing. It returns one limit for each meter: the limit with the longest
// period. It leaves out limits of a minute, an hour or the lifetime, because the days of a counter do not show their overage.
func (t *Terms) ExceedLimits() map[string]Limit {
	byMeter := map[string]Limit{}
	for i := range 1 + len(t.Further) {
		l := t.LimitAt(i)
		if l.OnExceed == DenyExceed || l.Unlimited() || l.Period > Year {
			continue
		}
		if known, ok := byMeter[l.Meter]; !ok || known.Period < l.Period {
			byMeter[l.Meter] = l
		}
	}
	return byMeter
}

package core

import "time"

// OverageOn returns the growth of the overage of a limit on each day. Days without growth are missing. The growth is negative when an adjustment gives
// usage back. days has the traffic of the counter, oldest first, from the beginning of the first window on. The period of the limit is a
// day or longer. A window that begins during a day counts that whole day.
func OverageOn(days []DayTotals, l Limit, anchors Anchors) map[Date]int64 {
	on := map[Date]int64{}
	var window Window
	var used, over int64
	for i := range days {
		d := &days[i]
		if w := anchors.Window(l.Period, lastOf(d.Date)); !w.Start.Equal(window.Start) {
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

// lastOf returns the last instant of a day.
func lastOf(d Date) time.Time { return (d + 1).Start().Add(-time.Nanosecond) }

// OverageFrom returns the day on which the window of a limit begins that contains the end of a day.
func (l Limit) OverageFrom(d Date, anchors Anchors) Date {
	return DateOf(anchors.Window(l.Period, lastOf(d)).Start)
}

// ExceedLimits returns the limits of the plan and of the overrides that deny nothing, one for each meter: the limit with the longest period. Limits of a minute, an hour or
// the lifetime are left out, because days cannot tell their overage.
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

package core

import (
	"fmt"
	"sync/atomic"
	"time"
)

// Period is the calendar period of a plan, in UTC.
type Period uint8

// The periods. Each value is an index into Counter.Windows and is stored: it never changes.
const (
	Day   Period = iota // midnight to midnight
	Week                // Monday to Monday, as in ISO 8601
	Month               // the 1st to the 1st
	Year                // January 1st to January 1st

	periods = 4
)

var periodNames = [periods]string{"day", "week", "month", "year"}

// Periods lists every period, the shortest first.
func Periods() []Period { return []Period{Day, Week, Month, Year} }

// ParsePeriod returns the period called name: day, week, month or year.
func ParsePeriod(name string) (Period, error) {
	for p, n := range periodNames {
		if n == name {
			return Period(p), nil
		}
	}
	return 0, fmt.Errorf("period: want day, week, month or year, got %q", name)
}

// String returns the name of the period.
func (p Period) String() string {
	if int(p) >= len(periodNames) {
		return fmt.Sprintf("Period(%d)", uint8(p))
	}
	return periodNames[p]
}

// MarshalText writes the name of the period.
func (p Period) MarshalText() ([]byte, error) {
	if int(p) >= len(periodNames) {
		return nil, fmt.Errorf("period: no period has the number %d", uint8(p))
	}
	return []byte(periodNames[p]), nil
}

// UnmarshalText reads the name of a period.
func (p *Period) UnmarshalText(text []byte) (err error) {
	*p, err = ParsePeriod(string(text))
	return err
}

// Window is the half-open span [Start, End) of one period. Both are whole
// seconds, in UTC.
type Window struct {
	Start, End time.Time
}

// Seconds returns the length of the window in seconds.
func (w Window) Seconds() int64 { return w.End.Unix() - w.Start.Unix() }

// Contains reports whether t lies in the window.
func (w Window) Contains(t time.Time) bool { return !t.Before(w.Start) && t.Before(w.End) }

// Window returns the window of the period that contains t.
func (p Period) Window(t time.Time) Window {
	if p >= periods {
		panic("invalid period " + p.String())
	}
	return calendarOf(t).windows[p]
}

// calendar holds the windows of one day in UTC.
type calendar struct {
	start, end int64 // of the day, Unix seconds
	windows    [periods]Window
}

// lastCalendar is the calendar of the last call, which is usually today.
var lastCalendar atomic.Pointer[calendar]

// calendarOf returns the windows that contain t.
func calendarOf(t time.Time) *calendar {
	at := t.Unix()
	if c := lastCalendar.Load(); c != nil && c.start <= at && at < c.end {
		return c
	}
	c := new(calendar)
	for p := range c.windows {
		start := Period(p).start(t)
		c.windows[p] = Window{Start: start, End: Period(p).next(start)}
	}
	c.start, c.end = c.windows[Day].Start.Unix(), c.windows[Day].End.Unix()
	lastCalendar.Store(c)
	return c
}

// start returns the beginning of the window that contains t.
func (p Period) start(t time.Time) time.Time {
	y, m, d := t.UTC().Date()
	switch p {
	case Week:
		sinceMonday := (int(t.UTC().Weekday()) + 6) % 7
		d -= sinceMonday
	case Month:
		d = 1
	case Year:
		m, d = time.January, 1
	}
	return time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
}

// next returns the end of the window that begins at start.
func (p Period) next(start time.Time) time.Time {
	switch p {
	case Day:
		return start.AddDate(0, 0, 1)
	case Week:
		return start.AddDate(0, 0, 7)
	case Month:
		return start.AddDate(0, 1, 0)
	default:
		return start.AddDate(1, 0, 0)
	}
}

package core

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"
)

// Period is the calendar period of a limit, in UTC.
type Period uint8

// The periods. Each value is an index into a [Tally] and is stored: it never changes.
const (
	Day      Period = iota // midnight to midnight
	Week                   // Monday to Monday, as in ISO 8601
	Month                  // the 1st to the 1st
	Year                   // January 1st to January 1st
	Minute                 // 60 seconds
	Hour                   // 60 minutes
	Lifetime               // one window without an end

	periods = 7
)

var periodNames = [periods]string{"day", "week", "month", "year", "minute", "hour", "lifetime"}

// Periods lists every period, the shortest first.
func Periods() []Period { return []Period{Minute, Hour, Day, Week, Month, Year, Lifetime} }

// PlanPeriods lists the periods that the request_period of a plan can have, the shortest first.
func PlanPeriods() []Period { return []Period{Day, Week, Month, Year} }

// ParsePeriod returns the period called name.
func ParsePeriod(name string) (Period, error) {
	for p, n := range periodNames {
		if n == name {
			return Period(p), nil
		}
	}
	return 0, fmt.Errorf("period: want one of %s, got %q", strings.Join(periodNames[:], ", "), name)
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

// Window is the half-open span [Start, End) of one period. Both are whole seconds, in UTC. The window of a lifetime
// begins at the Unix epoch, and its End is the zero time: it does not end.
type Window struct {
	Start, End time.Time
}

// Ends reports whether the window has an end.
func (w Window) Ends() bool { return !w.End.IsZero() }

// Seconds returns the length of the window in seconds, 0 for a window without an end.
func (w Window) Seconds() int64 {
	if !w.Ends() {
		return 0
	}
	return w.End.Unix() - w.Start.Unix()
}

// Contains reports whether t lies in the window.
func (w Window) Contains(t time.Time) bool {
	return !t.Before(w.Start) && (!w.Ends() || t.Before(w.End))
}

// lifetimeStart is the start of the window of [Lifetime] in Unix seconds.
const lifetimeStart = 0

// Window returns the window of the period that contains t.
func (p Period) Window(t time.Time) Window {
	switch p {
	case Minute, Hour:
		length := int64(60)
		if p == Hour {
			length *= 60
		}
		start := t.Unix() - floorMod(t.Unix(), length)
		return Window{time.Unix(start, 0).UTC(), time.Unix(start+length, 0).UTC()}
	case Lifetime:
		return Window{Start: time.Unix(lifetimeStart, 0).UTC()}
	}
	if p >= periods {
		panic("invalid period " + p.String())
	}
	return calendarOf(t).windows[p]
}

// calendar holds the windows of one day in UTC.
type calendar struct {
	start, end int64 // of the day, Unix seconds
	windows    [Year + 1]Window
	starts     [Year + 1]int64 // of the windows, Unix seconds
}

// lastCalendar is the calendar of the last call, which is usually today.
var lastCalendar atomic.Pointer[calendar]

// calendarOf returns the windows that contain t.
func calendarOf(t time.Time) *calendar { return calendarOfUnix(t.Unix()) }

// calendarOfUnix returns the windows that contain a time in Unix seconds.
func calendarOfUnix(at int64) *calendar {
	if c := lastCalendar.Load(); c != nil && c.start <= at && at < c.end {
		return c
	}
	c, t := new(calendar), time.Unix(at, 0)
	for p := range c.windows {
		start := Period(p).start(t)
		c.windows[p] = Window{Start: start, End: Period(p).next(start)}
		c.starts[p] = start.Unix()
	}
	c.start, c.end = c.starts[Day], c.windows[Day].End.Unix()
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

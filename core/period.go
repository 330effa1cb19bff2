package core

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// Period is the calendar period of a limit, in UTC.
type Period uint8

// The periods. Each value is an index into a [PeriodUsage] and is stored: it never changes once a version is released. The periods up to Year
// follow the calendar and the anchors of a user; Lifetime is the last one. Stores rely on this order.
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
	return 0, fmt.Errorf("period: want one of %s, got %q", PeriodNames(Periods()), name)
}

// PeriodNames returns the names of periods for a message: "day, week, month, year".
func PeriodNames(list []Period) string { return strings.Join(namesOf(list), ", ") }

func namesOf(list []Period) []string {
	names := make([]string, len(list))
	for i, p := range list {
		names[i] = p.String()
	}
	return names
}

// valid reports whether the period is one of [Periods].
func (p Period) valid() bool { return p < periods }

// String returns the name of the period.
func (p Period) String() string {
	if !p.valid() {
		return fmt.Sprintf("Period(%d)", uint8(p))
	}
	return periodNames[p]
}

// MarshalText writes the name of the period.
func (p Period) MarshalText() ([]byte, error) {
	if !p.valid() {
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

// epoch is the start of the window of [Lifetime]. The minutes, hours, days, months and years of the calendar are counted from it.
var epoch = time.Unix(0, 0).UTC()

// firstMonday is the day from which the weeks of the calendar are counted.
var firstMonday = epoch.AddDate(0, 0, 4)

// Window returns the window of the period that contains t.
func (p Period) Window(t time.Time) Window {
	switch {
	case !p.valid():
		panic("invalid period " + p.String())
	case p == Lifetime:
		return Window{Start: epoch}
	case p.anchored():
		return calendarOf(t).windows[p]
	}
	return p.windowFrom(epoch, t)
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
		c.windows[p] = Period(p).calendarWindow(t)
		c.starts[p] = c.windows[p].Start.Unix()
	}
	c.start, c.end = c.starts[Day], c.windows[Day].End.Unix()
	lastCalendar.Store(c)
	return c
}

// calendarWindow returns the day, week, month or year of the calendar that contains a time. Unlike [Period.Window] it leaves lastCalendar
// alone, which has the windows of today.
func (p Period) calendarWindow(at time.Time) Window {
	if p == Week {
		return p.windowFrom(firstMonday, at)
	}
	return p.windowFrom(epoch, at)
}

// Anchors are the moments at which the windows of a user begin, by the time from which each is in force, oldest
// first. Without one, and before the first, windows begin with the calendar.
//
// A new anchor grants no quota: the usage of a window that is open at that time also counts in windows of the new anchor. So a window can
// count usage from before its start: see [Anchors.Since].
type Anchors []Anchor

// Anchor is a moment of [Anchors].
type Anchor struct {
	From  time.Time `json:"from"`           // in force from this time on, in whole seconds
	Start time.Time `json:"start,omitzero"` // the windows of each day, week, month and year begin here; zero: with the calendar
}

// at returns how many of the anchors are in force at a time in Unix seconds.
func (a Anchors) at(at int64) int {
	n := len(a)
	for n > 0 && a[n-1].From.Unix() > at {
		n--
	}
	return n
}

// Start returns the start of the latest anchor, the zero time for the calendar.
func (a Anchors) Start() (start time.Time) {
	if n := len(a); n > 0 {
		start = a[n-1].Start
	}
	return start
}

// Window returns the window of a period that contains a time.
func (a Anchors) Window(p Period, at time.Time) Window {
	start := a[:a.at(at.Unix())].Start()
	if start.IsZero() || !p.anchored() {
		return p.Window(at)
	}
	return p.windowFrom(start, at)
}

// Since returns, for each period, the time from which usage counts in the window that contains at: the start of that window. A new anchor
// grants no quota: the usage in the window that is open when the anchor comes into force also counts in its first window, and in each later
// one that begins before the end of the open window.
func (a Anchors) Since(at time.Time) (since Since) {
	since.setCalendar(at.Unix())
	if len(a) == 0 {
		return since
	}
	for p := range since {
		if p := Period(p); p.anchored() {
			since[p], _ = a.since(p, at.Unix())
		}
	}
	return since
}

// since returns the time from which on usage counts at a time, in Unix seconds, and the end of the window that began then.
func (a Anchors) since(p Period, at int64) (start, end int64) {
	n := a.at(at)
	w := a[:n].window(p, at)
	start, end = w.Start.Unix(), w.End.Unix()
	if n == 0 {
		return start, end
	}
	from := a[n-1].From.Unix()
	if start >= from+p.longest() {
		return start, end // the window that was open has ended
	}
	if open, until := a[:n-1].since(p, from); start <= from || start < until {
		return open, until
	}
	return start, end
}

// resets returns the time from which the usage in a window of a period no longer counts: the end of the window or, if its usage also counts in later
// windows, the end of the last of them. See [Anchors.Since].
func (a Anchors) resets(p Period, w Window) time.Time {
	for len(a) > 0 && p.anchored() {
		if since, _ := a.since(p, w.End.Unix()); since >= w.End.Unix() {
			break
		}
		w = a.Window(p, w.End)
	}
	return w.End
}

// window returns the window of a day, week, month or year that contains a time in Unix seconds.
func (a Anchors) window(p Period, at int64) Window {
	t := time.Unix(at, 0)
	if start := a.Start(); !start.IsZero() {
		return p.windowFrom(start, t)
	}
	return p.calendarWindow(t)
}

// longest returns the length of the longest window of a day, week, month or year, in seconds.
func (p Period) longest() int64 { return [Year + 1]int64{1, 7, 31, 366}[p] * secondsOfDay }

// Since has, for each period, a time in Unix seconds, see [Anchors.Since].
type Since [periods]int64

// setCalendar sets the starts of the windows of the calendar that contain a time.
func (s *Since) setCalendar(at int64) {
	c := calendarOfUnix(at)
	for p := Day; p <= Year; p++ {
		s[p] = c.starts[p]
	}
	s[Minute], s[Hour], s[Lifetime] = at-floorMod(at, lengths[Minute]), at-floorMod(at, lengths[Hour]), epoch.Unix()
}

// anchored reports whether an anchor moves the windows of the period.
func (p Period) anchored() bool { return p <= Year }

// lengths are the lengths of windows in seconds; 0 for months, years and the lifetime.
var lengths = [periods]int64{Minute: 60, Hour: 60 * 60, Day: secondsOfDay, Week: 7 * secondsOfDay}

// windowFrom returns the window of a period that contains a time, if one window begins at start. Windows of a
// month begin on the day of start, or on the last day of a shorter month.
func (p Period) windowFrom(start, at time.Time) Window {
	start, at = start.UTC(), at.UTC()
	if length := lengths[p]; length > 0 {
		begin := at.Unix() - floorMod(at.Unix()-start.Unix(), length)
		return Window{time.Unix(begin, 0).UTC(), time.Unix(begin+length, 0).UTC()}
	}
	n := 12
	if p == Month {
		n = 1
	}
	months := (at.Year()-start.Year())*12 + int(at.Month()) - int(start.Month())
	months -= months % n
	for anniversary(start, months).After(at) {
		months -= n
	}
	for !anniversary(start, months+n).After(at) {
		months += n
	}
	return Window{anniversary(start, months), anniversary(start, months+n)}
}

// anniversary returns the time that is some months after start, in a shorter month on its last day.
func anniversary(start time.Time, months int) time.Time {
	year, month, day := start.Date()
	first := time.Date(year, month+time.Month(months), 1, start.Hour(), start.Minute(), start.Second(), 0, time.UTC)
	last := first.AddDate(0, 1, -1).Day()
	return first.AddDate(0, 0, min(day, last)-1)
}

// floorMod returns the remainder of a division, from 0 to b-1.
func floorMod(a, b int64) int64 { return (a%b + b) % b }

// MaxAnchors is the largest number of anchors that are kept for a user.
const MaxAnchors = 32

// Moved returns the anchors with another start, in force from now on. It drops anchors that no window reaches any more.
func (a Anchors) Moved(start, now time.Time) (Anchors, error) {
	start, now = start.UTC().Truncate(time.Second), now.UTC().Truncate(time.Second)
	if start.Equal(a.Start()) {
		return a, nil
	}
	kept := slices.DeleteFunc(slices.Clone(a), func(old Anchor) bool { return !old.From.Before(now) })
	for i := len(kept) - 1; i > 0; i-- {
		next := now
		if i+1 < len(kept) {
			next = kept[i+1].From
		}
		if !slices.ContainsFunc(PlanPeriods(), func(p Period) bool { return kept[:i+1].reaches(p, next.Unix()) || kept[i:i+1].reaches(p, next.Unix()) }) {
			kept = kept[i:]
			break
		}
	}
	if len(kept) == MaxAnchors {
		return nil, Invalid("custom_start", fmt.Sprintf("The start of the windows can be changed %d times a year", MaxAnchors-1))
	}
	return append(kept, Anchor{From: now, Start: start}), nil
}

// reaches reports whether the window that was open when the last anchor came decides what counts at a time.
func (a Anchors) reaches(p Period, at int64) bool {
	start, _ := a.since(p, at)
	return start != a.window(p, at).Start.Unix()
}

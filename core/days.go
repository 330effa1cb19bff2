package core

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// DaysKept is the number of days for which the traffic of a day is kept, including that day. HoursKept is the number of hours for which the traffic
// of an hour is kept.
const (
	DaysKept  = 400
	HoursKept = 7 * 24
)

// FirstHourKept returns the first hour that is kept at a time.
func FirstHourKept(now time.Time) Date { return HourOf(now) - HoursKept + 1 }

const (
	secondsOfHour = 60 * 60
	secondsOfDay  = 24 * secondsOfHour
)

// Date is a calendar day in UTC, or an hour of one: the number of days since 1970-01-01, or hour 0 plus the number of hours since then. So a list of
// days may have hours, too, and they come last.
type Date int32

const hour0, firstHour Date = 1 << 25, 1 << 23

// DateOf returns the day in UTC that contains t.
func DateOf(t time.Time) Date {
	return Date(floorDiv(t.Unix(), secondsOfDay))
}

// HourOf returns the hour in UTC that contains t.
func HourOf(t time.Time) Date {
	return hour0 + Date(floorDiv(t.Unix(), secondsOfHour))
}

// floorDiv returns the largest integer that is at most a/b.
func floorDiv(a, b int64) int64 {
	if a < 0 {
		a -= b - 1
	}
	return a / b
}

// HourIn returns the hour in which traffic of the time at counts when it counts on a day: the hour that contains at, or the first one of
// another day.
func (d Date) HourIn(at time.Time) Date {
	hour := hour0 + d*24
	if after := at.Unix() - int64(d)*secondsOfDay; 0 <= after && after < secondsOfDay {
		hour += Date(after / secondsOfHour)
	}
	return hour
}

// IsHour reports whether d is an hour.
func (d Date) IsHour() bool { return d >= firstHour }

// Day returns the day of an hour, and a day itself.
func (d Date) Day() Date { return DateOf(d.Start()) }

// FirstOfMonth returns the first day of the month that is a number of months after the month of the day.
func (d Date) FirstOfMonth(after int) Date {
	year, month, _ := d.Start().Date()
	return DateOf(time.Date(year, month+time.Month(after), 1, 0, 0, 0, 0, time.UTC))
}

// ParseDate returns the day that text names, as in 2026-03-12 (RFC 3339 full-date).
func ParseDate(text string) (Date, error) {
	t, err := time.Parse(time.DateOnly, text)
	if err != nil {
		return 0, fmt.Errorf("date: want a day like 2026-03-12, got %q", text)
	}
	return DateOf(t), nil
}

// ParseHour returns the hour that begins at the time that text names, as in 2026-03-12T13:00:00Z (RFC 3339 date-time).
func ParseHour(text string) (Date, error) {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil || !HourOf(t).Start().Equal(t) {
		return 0, fmt.Errorf("hour: want an hour like 2026-03-12T13:00:00Z, got %q", text)
	}
	return HourOf(t), nil
}

// Start returns the beginning of the day or hour.
func (d Date) Start() time.Time {
	if d.IsHour() {
		return time.Unix(int64(d-hour0)*secondsOfHour, 0).UTC()
	}
	return time.Unix(int64(d)*secondsOfDay, 0).UTC()
}

// String returns the day as in 2026-03-12, and the hour as in 2026-03-12T13:00:00Z.
func (d Date) String() string {
	if d.IsHour() {
		return d.Start().Format(time.RFC3339)
	}
	return d.Start().Format(time.DateOnly)
}

// MarshalText writes what String returns.
func (d Date) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (d *Date) UnmarshalText(text []byte) (err error) {
	parse := ParseDate
	if len(text) > len(time.DateOnly) {
		parse = ParseHour
	}
	*d, err = parse(string(text))
	return err
}

// Traffic is the cost that was allowed and the cost that was denied: the numbers of requests if
// each costs 1.
type Traffic struct {
	Allowed int64 `json:"allowed"`
	Denied  int64 `json:"denied"`
}

// Plus returns the sum, at most math.MaxInt64.
func (t Traffic) Plus(u Traffic) Traffic {
	return Traffic{AddSaturating(t.Allowed, u.Allowed), AddSaturating(t.Denied, u.Denied)}
}

// MeterCount names a meter that exists only in days: the cost of the requests minus the number of requests. While each request costs 1, its numbers
// are 0 and take no space. No meter of an account can have this name.
const MeterCount = "#"

// MeterTraffic is the traffic of one meter, in units of its cost. For [MeterRequests] on a day only Adjusted is set, because [Traffic] has the
// cost of requests. An hour has all traffic by meter.
type MeterTraffic struct {
	Allowed  int64 `json:"allowed,omitempty"`
	Denied   int64 `json:"denied,omitempty"`
	Adjusted int64 `json:"adjusted,omitempty"` // the sum of the adjustments; negative if they lowered the usage
}

// Used returns the usage: the allowed cost plus the adjustments.
func (t MeterTraffic) Used() int64 { return AddSigned(t.Allowed, t.Adjusted) }

// Plus returns the sum of t and u. Each number is from -MaxLimit to MaxLimit.
func (t MeterTraffic) Plus(u MeterTraffic) MeterTraffic {
	return MeterTraffic{AddSigned(t.Allowed, u.Allowed), AddSigned(t.Denied, u.Denied), AddSigned(t.Adjusted, u.Adjusted)}
}

// MeterTotals is the traffic of a meter with a name.
type MeterTotals struct {
	Meter string `json:"meter"`
	MeterTraffic
}

// DayTotals is the traffic of one day or hour.
type DayTotals struct {
	Date Date `json:"date"`
	Traffic
	Meters []MeterTotals `json:"meters,omitempty"` // sorted by name
}

// Of returns the traffic of a meter.
func (d *DayTotals) Of(meter string) MeterTraffic {
	t := d.stored(meter)
	if meter == MeterRequests {
		t = t.Plus(MeterTraffic{Allowed: d.Allowed, Denied: d.Denied})
	}
	return t
}

// Requests returns the numbers of allowed and denied requests. A released hold does not count.
func (d *DayTotals) Requests() Traffic {
	cost, excess := d.Of(MeterRequests), d.stored(MeterCount)
	return Traffic{AddSigned(cost.Allowed, -excess.Allowed), AddSigned(cost.Denied, -excess.Denied)}
}

// stored returns the traffic of a meter in Meters.
func (d *DayTotals) stored(meter string) MeterTraffic {
	for _, m := range d.Meters {
		if m.Meter == meter {
			return m.MeterTraffic
		}
	}
	return MeterTraffic{}
}

// AddMeter adds traffic of a meter to the day.
func (d *DayTotals) AddMeter(meter string, t MeterTraffic) {
	if t == (MeterTraffic{}) {
		return
	}
	i, found := slices.BinarySearchFunc(d.Meters, meter, func(m MeterTotals, name string) int { return strings.Compare(m.Meter, name) })
	if !found {
		d.Meters = slices.Insert(d.Meters, i, MeterTotals{Meter: meter})
	}
	d.Meters[i].MeterTraffic = d.Meters[i].Plus(t)
}

// Add adds the traffic of another day.
func (d *DayTotals) Add(other *DayTotals) {
	d.Traffic = d.Plus(other.Traffic)
	for _, m := range other.Meters {
		d.AddMeter(m.Meter, m.MeterTraffic)
	}
}

// NewDays returns the days or hours from the first to the last, without traffic.
func NewDays(first, last Date) []DayTotals {
	list := make([]DayTotals, int64(last)-int64(first)+1)
	for i := range list {
		list[i].Date = first + Date(i)
	}
	return list
}

// CounterDay is the stored traffic of a key or user on one day, or in one hour. The traffic of an hour is all in Meters.
type CounterDay struct {
	Date    Date       `json:"date"`
	Traffic            // of a key: all its requests; of a user: the requests of its keys at the time
	Shared  Traffic    `json:"shared,omitzero"`  // of a user: the requests that its counter decided; of a key: zero
	Meters  []MeterDay `json:"meters,omitempty"` // sorted by name, each with a number other than 0
}

// MeterDay is the stored traffic of one meter on one day, as in [CounterDay].
type MeterDay struct {
	Meter string `json:"meter"`
	MeterTraffic
	Shared MeterTraffic `json:"shared,omitzero"`
}

// Empty reports whether the day has no traffic.
func (d *CounterDay) Empty() bool {
	return d.Traffic == (Traffic{}) && d.Shared == (Traffic{}) && len(d.Meters) == 0
}

// Totals returns the traffic of the day; with shared, only its Shared traffic.
func (d *CounterDay) Totals(shared bool) DayTotals {
	t := DayTotals{Date: d.Date, Traffic: d.Traffic}
	if shared {
		t.Traffic = d.Shared
	}
	for _, m := range d.Meters {
		if shared {
			m.MeterTraffic = m.Shared
		}
		t.AddMeter(m.Meter, m.MeterTraffic)
	}
	return t
}

// CheckMeters returns an error unless the meters are sorted, valid and not empty. Only the day of a user may have shared traffic.
func (d *CounterDay) CheckMeters(ofUser bool) error {
	if len(d.Meters) > MaxMetersEver+2 {
		return fmt.Errorf("it has more than %d meters", MaxMetersEver)
	}
	for i, m := range d.Meters {
		switch {
		case i > 0 && d.Meters[i-1].Meter >= m.Meter:
			return errors.New("its meters are not sorted")
		case m.Meter != MeterCount && !IsMeterName(m.Meter):
			return errors.New("it has a meter without a valid name")
		case m.MeterTraffic == (MeterTraffic{}) && m.Shared == (MeterTraffic{}):
			return errors.New("it has a meter without traffic")
		case m.Meter == MeterRequests && !d.Date.IsHour() && (m.Allowed != 0 || m.Denied != 0 || m.Shared.Allowed != 0 || m.Shared.Denied != 0):
			return errors.New("its requests are not only in its own numbers")
		case !ofUser && m.Shared != (MeterTraffic{}):
			return errors.New("it has shared traffic, which only the day of a user has")
		}
		for _, n := range []int64{m.Allowed, m.Denied, m.Adjusted, m.Shared.Allowed, m.Shared.Denied, m.Shared.Adjusted} {
			if n < -MaxLimit || n > MaxLimit {
				return fmt.Errorf("a number of its meter %s is out of range", m.Meter)
			}
		}
	}
	return nil
}

// DaysFilter selects the traffic that is added up. At most one member besides Account is set.
// Account alone selects all users of the account.
type DaysFilter struct {
	Account string
	KeyID   string
	UserID  int64
	PlanID  string // the keys with this PlanID, and the Shared traffic of the users with this PlanID
}

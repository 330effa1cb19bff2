package core

import (
	"fmt"
	"time"
)

// DaysKept is the number of days for which the traffic of a day is kept, including that day.
const DaysKept = 400

const secondsOfDay = 24 * 60 * 60

// Date is a calendar day in UTC: the number of days since 1970-01-01.
type Date int32

// DateOf returns the day in UTC that contains t.
func DateOf(t time.Time) Date {
	s := t.Unix()
	return Date((s - floorMod(s, secondsOfDay)) / secondsOfDay)
}

// ParseDate returns the day that text names, as in 2026-03-12 (RFC 3339 full-date).
func ParseDate(text string) (Date, error) {
	t, err := time.Parse(time.DateOnly, text)
	if err != nil {
		return 0, fmt.Errorf("date: want a day like 2026-03-12, got %q", text)
	}
	return DateOf(t), nil
}

// Start returns the beginning of the day.
func (d Date) Start() time.Time { return time.Unix(int64(d)*secondsOfDay, 0).UTC() }

// String returns the day as in 2026-03-12.
func (d Date) String() string { return d.Start().Format(time.DateOnly) }

// MarshalText writes the day as in 2026-03-12.
func (d Date) MarshalText() ([]byte, error) { return d.Start().AppendFormat(nil, time.DateOnly), nil }

// UnmarshalText reads what MarshalText writes.
func (d *Date) UnmarshalText(text []byte) (err error) {
	*d, err = ParseDate(string(text))
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

// DayTotals is the traffic of one day.
type DayTotals struct {
	Date Date `json:"date"`
	Traffic
}

// NewDays returns the days from the first to the last, without traffic.
func NewDays(first, last Date) []DayTotals {
	list := make([]DayTotals, int64(last)-int64(first)+1)
	for i := range list {
		list[i].Date = first + Date(i)
	}
	return list
}

// CounterDay is the stored traffic of a key or user on one day.
type CounterDay struct {
	Date    Date    `json:"date"`
	Traffic         // of a key: all its requests; of a user: the requests of its keys at the time
	Shared  Traffic `json:"shared,omitzero"` // of a user: the requests that its counter decided; of a key: zero
}

// DaysFilter selects the traffic that is added up. At most one member besides Account is set.
// Account alone selects all users of the account.
type DaysFilter struct {
	Account string
	KeyID   string
	UserID  int64
	PlanID  string // the keys with this PlanID, and the Shared traffic of the users with this PlanID
}

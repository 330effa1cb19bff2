package core

import (
	"math"
	"time"
)

// Deny counts a denied request and reports whether the history records it: at most
// [DeniedPerSecond] in one second of the clock, and [DeniedPerDay] on one day. If the clock steps
// back, the later day stays in force. A store persists the values of [Counter.DeniedOn] with the
// counter.
func (c *Counter) Deny(at time.Time) bool {
	if s := max(0, at.Unix()); s != c.LastRefused {
		c.LastRefused, c.deniedInSecond = s, 0
	}
	c.openDeniedDay(DateOf(at))
	if c.deniedInSecond >= DeniedPerSecond || c.deniedInDay >= DeniedPerDay {
		c.DeniedOmitted++
		return false
	}
	c.deniedInSecond++
	c.deniedInDay++
	return true
}

// openDeniedDay starts the count of recorded denials at 0 for a later day. An earlier day
// changes nothing.
func (c *Counter) openDeniedDay(d Date) {
	if n := uint16(min(max(0, d), math.MaxUint16)); n > c.deniedDay {
		c.deniedDay, c.deniedInDay = n, 0
	}
}

// DeniedOn returns the latest day of a denial and how many were recorded on it.
func (c *Counter) DeniedOn() (day Date, recorded int) {
	return Date(c.deniedDay), int(c.deniedInDay)
}

// AddDenied adds denials that were recorded on a day, or on the later day of
// [Counter.DeniedOn]. A store restores a counter with AddDenied, and sets LastRefused.
func (c *Counter) AddDenied(day Date, recorded int) {
	c.openDeniedDay(day)
	c.deniedInDay = uint16(min(int(c.deniedInDay)+max(0, recorded), DeniedPerDay))
}

// LastRefusedAt returns the time LastRefused, the zero time for none.
func (c *Counter) LastRefusedAt() time.Time {
	if c.LastRefused == 0 {
		return time.Time{}
	}
	return time.Unix(c.LastRefused, 0).UTC()
}

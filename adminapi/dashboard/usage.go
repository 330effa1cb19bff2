package dashboard

import (
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// usage is how much of a limit is used.
type usage struct {
	Used, Limit int64
	Meter       meter
	Period      string    // in which it is counted, "" when there are several
	Reset       time.Time // when that begins anew
}

// meter is a bar that is filled as far as a limit is used.
type meter struct {
	Now   float64 // in percent, at most 100
	Label string
	Class string // how full it is: low, high or full
}

func newUsage(used, limit int64) *usage {
	return &usage{Used: used, Limit: limit, Meter: newMeter(used, limit)}
}

// in sets the period to that in which a key is counted.
func (u *usage) in(k *core.KeyUsage) *usage {
	u.Period, u.Reset = k.Plan.Period.String(), k.Window.End
	return u
}

// Left returns how much is left of the limit.
func (u *usage) Left() int64 { return max(0, u.Limit-u.Used) }

func newMeter(used, limit int64) meter {
	m := meter{Now: min(core.Percentage(used, limit), 100), Label: number(used) + " of " + number(limit) + " used", Class: "low"}
	switch {
	case used >= limit:
		m.Class = "full"
	case m.Now >= 80:
		m.Class = "high"
	}
	return m
}

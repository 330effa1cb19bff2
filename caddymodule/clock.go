package caddymodule

import (
	"log/slog"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// ReadClock is given to [core.NewClock]. nil reads the clocks of the machine. Tests set it before a store is opened.
var ReadClock func() (wall time.Time, monotonic time.Duration)

// newClock returns a clock that logs its changes.
func newClock(log *slog.Logger) *core.Clock {
	return core.NewClock(ReadClock, func(change core.ClockChange, s core.ClockState) {
		text := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
		log := log.With("clock", text(s.Wall), "ahead", s.Ahead().Round(time.Second).String())
		if !s.Server.IsZero() {
			log = log.With("clock_of_redis", text(s.Server))
		}
		switch change {
		case core.ClockHeld:
			log.Error("the clock is far ahead of the last good time: requests count from the last good time on, until the clock returns, "+
				"is steady for a minute, or is confirmed by limitkeeper clock accept", "used", text(s.Used))
		case core.ClockReturned:
			log.Warn("the clock is right again and in use")
		case core.ClockSteady:
			log.Warn("the clock was steady for a minute and is in use")
		case core.ClockAccepted:
			log.Warn("the clock was confirmed by limitkeeper clock accept and is in use")
		}
	})
}

// collectClock collects the state of the clock.
func collectClock(c *core.Clock, ch scrape) {
	s := c.State()
	ch.gauge("clock_ahead_seconds", "By how much the clock of the machine is ahead of the time at which requests count; 0 unless it has jumped.", s.Ahead().Seconds())
	ch.counter("clock_jumps_total", "How often the clock of the machine has jumped forward by more than 5 minutes.", float64(s.Jumps))
}

package core_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/clocktest"
)

const year = 365 * 24 * time.Hour

// guarded is a Clock over a clocktest.Clock, with the changes that it reported.
type guarded struct {
	*core.Clock
	t       *testing.T
	machine *clocktest.Clock
	changes []core.ClockChange
}

func newGuarded(t *testing.T) *guarded {
	g := &guarded{t: t, machine: clocktest.New(at("2026-11-22T10:00:00Z"))}
	g.Clock = core.NewClock(g.machine.Read, func(c core.ClockChange, s core.ClockState) {
		if s.Held != (c == core.ClockHeld) {
			t.Errorf("the change %s is reported with held %t", c, s.Held)
		}
		g.changes = append(g.changes, c)
	})
	return g
}

// want checks the current time and all changes reported so far.
func (g *guarded) want(when string, now string, changes ...core.ClockChange) {
	g.t.Helper()
	if got := g.Now(); !got.Equal(at(now)) {
		g.t.Errorf("%s: the clock shows %s, want %s", when, got, now)
	}
	if !slices.Equal(g.changes, changes) {
		g.t.Errorf("%s: got the changes %q, want %q", when, g.changes, changes)
	}
	if s := g.State(); s.Held != (len(changes) > 0 && changes[len(changes)-1] == core.ClockHeld) || !s.Used.Equal(at(now)) ||
		!s.Held && s.Ahead() != 0 {
		g.t.Errorf("%s: got the state %+v", when, s)
	}
}

// A wall clock that is a year ahead for less than a minute is never used: the clock continues by
// the monotonic clock.
func TestClockJumpReturns(t *testing.T) {
	g := newGuarded(t)
	g.machine.Step(year)
	g.want("after the jump", "2026-11-22T10:00:00Z", core.ClockHeld)
	if got := g.State().Ahead(); got != year {
		t.Errorf("the wall clock is said to be %s ahead, want %s", got, year)
	}
	g.machine.Pass(59 * time.Second)
	g.want("later", "2026-11-22T10:00:59Z", core.ClockHeld)
	g.machine.Step(-year)
	g.want("after the return", "2026-11-22T10:00:59Z", core.ClockHeld, core.ClockReturned)
	if got := g.State().Jumps; got != 1 {
		t.Errorf("got %d jumps, want 1", got)
	}
}

// A hold ends after a minute on a steady wall clock, so that a machine needs no help after a
// suspend. Another step restarts the minute.
func TestClockJumpStays(t *testing.T) {
	g := newGuarded(t)
	g.machine.Step(8 * time.Hour)
	g.want("after the jump", "2026-11-22T10:00:00Z", core.ClockHeld)
	g.machine.Pass(59 * time.Second)
	g.machine.Step(3 * time.Second)
	g.want("after another step", "2026-11-22T10:00:59Z", core.ClockHeld)
	g.machine.Pass(59 * time.Second)
	g.want("59 s after that", "2026-11-22T10:01:58Z", core.ClockHeld)
	g.machine.Step(time.Second) // as NTP and leap seconds do
	g.machine.Pass(time.Second)
	g.want("60 s after that", "2026-11-22T18:02:03Z", core.ClockHeld, core.ClockSteady)
}

// Five minutes ahead is no jump, and no step back is: an earlier window is never opened. Small
// steps add up to a jump.
func TestClockSmallSteps(t *testing.T) {
	g := newGuarded(t)
	g.machine.Step(5 * time.Minute)
	g.want("5 minutes ahead", "2026-11-22T10:05:00Z")
	g.machine.Step(-2 * 24 * time.Hour)
	g.want("two days back", "2026-11-20T10:05:00Z")
	for range 5 {
		g.machine.Step(time.Minute)
		g.machine.Pass(time.Hour)
	}
	g.want("5 steps of a minute", "2026-11-20T15:10:00Z")
	g.machine.Step(time.Minute)
	g.want("and another", "2026-11-20T15:05:00Z", core.ClockHeld)
}

// The operator can accept a jump. Without a jump the command reports that there is none.
func TestClockAccept(t *testing.T) {
	g := newGuarded(t)
	if _, err := g.Accept(); !errors.Is(err, core.ErrClockNotHeld) {
		t.Errorf("got %v, want ErrClockNotHeld", err)
	}
	g.machine.Step(24 * time.Hour)
	s, err := g.Accept()
	if err != nil || s.Ahead() != 24*time.Hour {
		t.Errorf("got %+v, %v, want the state of the jump", s, err)
	}
	g.want("after the command", "2026-11-23T10:00:00Z", core.ClockHeld, core.ClockAccepted)
	g.machine.Step(24 * time.Hour)
	g.want("after the next jump", "2026-11-23T10:00:00Z", core.ClockHeld, core.ClockAccepted, core.ClockHeld)
}

// A process that starts with a wrong clock begins a hold of a minute, if the last count is more
// than 31 days old. A store may be closed over a holiday.
func TestClockResume(t *testing.T) {
	g := newGuarded(t)
	g.Resume(at("2026-10-22T10:00:00Z"))
	g.want("31 days later", "2026-11-22T10:00:00Z")
	g.Resume(at("2027-11-22T10:00:00Z"))
	g.want("before the last count", "2026-11-22T10:00:00Z")
	g.Resume(at("2026-10-22T09:59:59Z"))
	g.want("more than 31 days later", "2026-10-22T09:59:59Z", core.ClockHeld)
	g.machine.Pass(time.Minute)
	g.want("a minute later", "2026-11-22T10:01:00Z", core.ClockHeld, core.ClockSteady)
}

// A process that starts ahead of its store's server uses the server's time while they differ: its
// own time would open windows for all processes.
func TestClockStartsAheadOfServer(t *testing.T) {
	g := newGuarded(t)
	g.Compare(at("2026-11-22T09:54:59Z"))
	g.want("at the start", "2026-11-22T09:54:59Z", core.ClockHeld)
	g.machine.Pass(time.Hour)
	g.want("an hour later", "2026-11-22T10:54:59Z", core.ClockHeld)
	g.Compare(at("2026-11-22T11:00:00Z")) // the server's clock was wrong, and was set
	g.want("confirmed by the server", "2026-11-22T11:00:00Z", core.ClockHeld, core.ClockSteady)
}

// The server of a running process can only withhold its confirmation of a jump. A server with a
// wrong clock moves no process.
func TestClockComparedWithServer(t *testing.T) {
	g := newGuarded(t)
	g.Compare(at("2026-11-22T10:03:00Z"))
	g.Compare(at("2027-11-22T10:00:00Z"))
	g.Compare(at("2025-11-22T10:00:00Z"))
	g.want("with a server that jumps", "2026-11-22T10:00:00Z")
	g.Compare(at("2026-11-22T10:00:00Z"))
	g.machine.Step(year)
	g.machine.Pass(time.Hour)
	g.Compare(at("2026-11-22T11:00:00Z"))
	g.machine.Pass(time.Hour)
	g.want("a jump that the server contradicts", "2026-11-22T12:00:00Z", core.ClockHeld)
	if _, err := g.Accept(); err != nil {
		t.Fatal(err)
	}
	g.want("accepted by the operator", "2027-11-22T12:00:00Z", core.ClockHeld, core.ClockAccepted)
}

// A clock of the machine does not jump without a reason, and its times have Go's monotonic readings
// during a hold: a throttle measures by them.
func TestClockOfMachine(t *testing.T) {
	c := core.NewClock(nil, nil)
	before := time.Now()
	now := c.Now()
	if s := c.State(); now.Before(before) || s.Held || s.Jumps != 0 {
		t.Errorf("got %s after %s, state %+v", now, before, s)
	}
	c.Resume(before.Round(0).AddDate(-1, 0, 0))
	a, b := c.Now(), c.Now()
	if !c.State().Held || a.After(before.AddDate(0, -11, 0)) || b.Sub(a) < 0 || b.String() == b.Round(0).String() {
		t.Errorf("got %s and %s, want two times of last year with monotonic readings", a, b)
	}
}

// BenchmarkClockNow measures the cost of Clock.Now for each decision, next to time.Now.
func BenchmarkClockNow(b *testing.B) {
	b.Run("time.Now", func(b *testing.B) {
		for b.Loop() {
			_ = time.Now()
		}
	})
	b.Run("Clock", func(b *testing.B) {
		c := core.NewClock(nil, nil)
		for b.Loop() {
			_ = c.Now()
		}
	})
}

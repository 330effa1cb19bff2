package core

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// The bounds of a [Clock].
const (
	maxClockJump  = 5 * time.Minute     // a larger jump forward begins a hold
	clockHold     = time.Minute         // a hold ends after so long on a steady wall clock
	clockUnsteady = 2 * time.Second     // a larger step during a hold restarts the minute
	maxClockPause = 31 * 24 * time.Hour // a start longer after the last count begins a hold
)

// ErrClockNotHeld means that there is no jump of the clock to accept.
var ErrClockNotHeld = errors.New("nothing to accept: the wall clock is in use")

// Clock is the clock of a process. All decisions use it. A request opens the window of its
// time, and no store opens an earlier window again. A wall clock that is wrong for a moment
// would therefore end every quota.
//
// A Clock compares the wall clock with the expected time: the last good time, continued by the
// monotonic clock, which cannot be set. While the wall clock is more than 5 minutes ahead of
// the expected time, the clock is held: Now returns the expected time. A hold ends when the wall
// clock returns, when the wall clock was steady for a minute, or when the operator accepts the
// jump. A suspended machine stops its monotonic clock: after a suspend the wall clock is
// rightly ahead, and the hold lasts a minute.
//
// Now follows a wall clock that steps back, and steps forward of less than 5 minutes until
// their sum is more than 5 minutes.
//
// A Clock is safe for concurrent use.
type Clock struct {
	read     func() (wall time.Time, monotonic time.Duration)
	onChange func(ClockChange, ClockState)
	state    atomic.Pointer[clockState] // stored with mu held

	mu     sync.Mutex
	server *moment // guarded by mu: the clock of the store's server; nil without a server
	jumps  uint64  // guarded by mu
}

// clockState is immutable.
type clockState struct {
	good moment  // the last good time
	held *moment // when the minute of the hold began, by the wall clock; nil without a hold
}

// moment is a time, and the reading of the monotonic clock at that time.
type moment struct {
	at        time.Time
	monotonic time.Duration
}

// when returns the time at another reading of the monotonic clock.
func (m *moment) when(monotonic time.Duration) time.Time { return m.at.Add(monotonic - m.monotonic) }

// lead returns by how much a wall clock is ahead of the time that m leads one to expect.
func (m *moment) lead(wall time.Time, monotonic time.Duration) time.Duration {
	return wall.Round(0).Sub(m.when(monotonic).Round(0)) // without Go's monotonic readings
}

// ClockChange is a change that a [Clock] reports.
type ClockChange string

// The changes of a clock.
const (
	ClockHeld     ClockChange = "held"     // a hold began
	ClockReturned ClockChange = "returned" // a hold ended: the wall clock agrees with the expected time
	ClockSteady   ClockChange = "steady"   // a hold ended: the wall clock was steady for a minute
	ClockAccepted ClockChange = "accepted" // a hold ended: [Clock.Accept] was called
)

// ClockState is a reading of a [Clock]. With a change, Used is the expected time before the
// change.
type ClockState struct {
	Held   bool      // the expected time is used, not the wall clock
	Wall   time.Time // the wall clock
	Used   time.Time // the time that Now returns
	Server time.Time // the clock of the store's server; zero without a server
	Jumps  uint64    // holds since the clock was made
}

// Ahead returns by how much the wall clock is ahead of Used.
func (s ClockState) Ahead() time.Duration { return s.Wall.Round(0).Sub(s.Used.Round(0)) }

// NewClock returns a clock whose last good time is the present wall clock. read returns the wall
// clock and a monotonic clock, which may begin at any value; nil reads the clocks of the machine.
// onChange is called once with each change and must return at once; nil reports nothing.
func NewClock(read func() (wall time.Time, monotonic time.Duration), onChange func(ClockChange, ClockState)) *Clock {
	if read == nil {
		read = machineClock(time.Now())
	}
	if onChange == nil {
		onChange = func(ClockChange, ClockState) {}
	}
	c := &Clock{read: read, onChange: onChange}
	wall, monotonic := read()
	c.state.Store(&clockState{good: moment{wall, monotonic}})
	return c
}

func machineClock(began time.Time) func() (time.Time, time.Duration) {
	return func() (wall time.Time, monotonic time.Duration) {
		now := time.Now()
		return now, now.Sub(began)
	}
}

// Now returns the time to decide by.
func (c *Clock) Now() time.Time {
	wall, monotonic := c.read()
	s := c.state.Load()
	// Cheaper than moment.lead, which is exact: nanoseconds overflow in the year 2262.
	lead := time.Duration(wall.UnixNano()-s.good.at.UnixNano()) - (monotonic - s.good.monotonic)
	if s.held == nil && lead.Abs() <= maxClockJump {
		return wall
	}
	return c.nowAfterJump()
}

// nowAfterJump is Now while the wall clock has jumped. It reads the clocks again, because only
// readings under the lock are in order.
func (c *Clock) nowAfterJump() time.Time {
	c.mu.Lock()
	wall, monotonic := c.read()
	expected := c.state.Load().good.when(monotonic)
	change := c.updateHoldLocked(wall, monotonic)
	state := c.stateLocked(wall, monotonic)
	c.mu.Unlock()
	now := state.Used
	if change != "" {
		state.Used = expected
		c.onChange(change, state)
	}
	return now
}

// updateHoldLocked begins or ends a hold, and returns the change, "" for none.
func (c *Clock) updateHoldLocked(wall time.Time, monotonic time.Duration) (change ClockChange) {
	s := *c.state.Load()
	reading := moment{wall, monotonic}
	switch lead := s.good.lead(wall, monotonic); {
	case lead <= maxClockJump:
		if lead < -maxClockJump {
			s.good = reading
		}
		if s.held != nil {
			s.held, change = nil, ClockReturned
		}
	case s.held == nil:
		s.held, change = &reading, ClockHeld
		c.jumps++
	case s.held.lead(wall, monotonic).Abs() > clockUnsteady:
		s.held = &reading
	case monotonic-s.held.monotonic >= clockHold && c.confirmedLocked(wall, monotonic):
		s, change = clockState{good: reading}, ClockSteady
	}
	c.state.Store(&s)
	return change
}

// confirmedLocked reports whether the store's server, if there is one, agrees with the wall clock.
func (c *Clock) confirmedLocked(wall time.Time, monotonic time.Duration) bool {
	return c.server == nil || c.server.lead(wall, monotonic) <= maxClockJump
}

// Resume tells a new clock when an earlier process counted last. A process cannot tell by its
// clocks whether the wall clock is wrong or the store was closed for long. A wall clock that is
// up to 31 days later is in use at once, for stores that were closed over a holiday. A later wall
// clock begins a hold.
func (c *Clock) Resume(last time.Time) { c.lower(last, maxClockPause) }

// Compare tells the clock what the clock of the store's server shows now. A store calls it at
// least once a second.
//
// Other processes share the windows on the server. A process that starts more than 5 minutes
// ahead of the server therefore begins a hold, from the time of the server. A hold does not end
// by time while the wall clock is more than 5 minutes ahead of the server. Nothing else changes:
// a server whose clock jumps moves no process.
func (c *Clock) Compare(server time.Time) {
	c.mu.Lock()
	first := c.server == nil
	_, monotonic := c.read()
	c.server = &moment{server, monotonic}
	c.mu.Unlock()
	if first {
		c.lower(server, maxClockJump)
	}
	c.Now() // begins and ends holds in an idle process
}

// lower replaces the last good time by t, if t is earlier by more than a tolerance.
func (c *Clock) lower(t time.Time, tolerance time.Duration) {
	c.mu.Lock()
	wall, monotonic := c.read()
	s := *c.state.Load()
	if by := s.good.when(monotonic).Round(0).Sub(t); by > tolerance {
		// Go measures intervals by the monotonic reading within wall. t has none.
		s.good = moment{wall.Add(-wall.Round(0).Sub(t)), monotonic}
		c.state.Store(&s)
	}
	c.mu.Unlock()
	c.Now()
}

// Accept ends a hold: the wall clock becomes the last good time. It returns the state before, or
// [ErrClockNotHeld].
func (c *Clock) Accept() (ClockState, error) {
	c.Now()
	c.mu.Lock()
	wall, monotonic := c.read()
	state := c.stateLocked(wall, monotonic)
	if !state.Held {
		c.mu.Unlock()
		return state, ErrClockNotHeld
	}
	c.state.Store(&clockState{good: moment{wall, monotonic}})
	c.mu.Unlock()
	ended := state
	ended.Held = false
	c.onChange(ClockAccepted, ended)
	return state, nil
}

// State returns a reading of the clock.
func (c *Clock) State() ClockState {
	c.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stateLocked(c.read())
}

func (c *Clock) stateLocked(wall time.Time, monotonic time.Duration) ClockState {
	s := c.state.Load()
	state := ClockState{Held: s.held != nil, Wall: wall, Used: wall, Jumps: c.jumps}
	if state.Held {
		state.Used = s.good.when(monotonic)
	}
	if c.server != nil {
		state.Server = c.server.when(monotonic)
	}
	return state
}

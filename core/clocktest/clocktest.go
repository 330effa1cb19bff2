// Package clocktest is a machine's clock for tests.
package clocktest

import (
	"sync"
	"time"
)

// Clock is the clock of a machine in a test: a wall clock, which can be set, and a monotonic clock,
// which cannot. It is safe for concurrent use.
type Clock struct {
	mu        sync.Mutex
	wall      time.Time
	monotonic time.Duration
}

// New returns a clock whose wall clock shows wall.
func New(wall time.Time) *Clock { return &Clock{wall: wall} }

// Read returns both clocks, as core.NewClock reads them.
func (c *Clock) Read() (wall time.Time, monotonic time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wall, c.monotonic
}

// Wall returns the wall clock.
func (c *Clock) Wall() time.Time {
	wall, _ := c.Read()
	return wall
}

// Pass advances both clocks.
func (c *Clock) Pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall, c.monotonic = c.wall.Add(d), c.monotonic+d
}

// Step sets the wall clock forward by d, or back if d is negative. The monotonic clock does not
// change.
func (c *Clock) Step(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall = c.wall.Add(d)
}

package service

import (
	"context"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// LimitedCounter is the usage of a counter with the plan that limits the counter.
type LimitedCounter struct {
	Plan              *core.Plan
	core.CounterUsage                   // of the first limit
	Limits            []core.LimitUsage // of all limits, the primary one first
	ExhaustsAt        []time.Time       // of a [UserUsage]: the time at which each of Limits is used up at the present pace; zero: not before the reset
}

// usedShare returns the highest share of a limit that is used. It is 1 or more if nothing is left.
func (c *LimitedCounter) usedShare() (highest float64) {
	for i := range c.Limits {
		highest = max(highest, c.Limits[i].Share())
	}
	return highest
}

// countersOf returns the counters of the items of a list.
func countersOf[T any](read func([]core.CounterID) ([]core.Counter, error), list []T, id func(T) core.CounterID) ([]core.Counter, error) {
	ids := make([]core.CounterID, len(list))
	for i, item := range list {
		ids[i] = id(item)
	}
	return read(ids)
}

// counters returns a function that reads counters of the store.
func (s *Service) counters(ctx context.Context) func([]core.CounterID) ([]core.Counter, error) {
	return func(ids []core.CounterID) ([]core.Counter, error) { return s.store.Counters(ctx, ids) }
}

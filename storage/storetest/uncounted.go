package storetest

import (
	"context"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var uncountedWindow = core.Month.Window(time.Unix(1_800_000_000, 0))

// Uncounted returns s with a Consume that allows every request and counts nothing: a benchmark over
// it measures the code above the store.
func Uncounted(s core.Store) core.Store { return uncounted{s} }

type uncounted struct{ core.Store }

// Consume implements [core.Store].
func (uncounted) Consume(context.Context, *core.Consumption) (core.ConsumeResult, error) {
	return core.ConsumeResult{Usage: core.Usage{Window: uncountedWindow, Used: 123}, Allowed: true}, nil
}

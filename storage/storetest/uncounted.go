package storetest

import (
	"context"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

var uncountedWindow = core.Month.Window(time.Unix(1_800_000_000, 0))

// Uncounted returns a store that allows every request and counts none, and is s else:
// what a benchmark measures over it is not the store's.
func Uncounted(s core.Store) core.Store { return uncounted{s} }

type uncounted struct{ core.Store }

// Consume implements [core.Store].
func (uncounted) Consume(context.Context, *core.Consumption) (core.ConsumeResult, error) {
	return core.ConsumeResult{Usage: core.Usage{Window: uncountedWindow, Used: 123}, Allowed: true}, nil
}
